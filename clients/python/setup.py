"""Adds the message classes and what they need; everything else is in pyproject.toml."""

import pathlib
import shutil
import sys
import tempfile

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # an isolated build does not look beside this file

from generate import PROTO, floors, generate


class BuildWithMessages(build_py):
    def run(self) -> None:
        super().run()
        generate(HERE / "src" if self.editable_mode else pathlib.Path(self.build_lib))


class SourcesWithMessages(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        shutil.copytree(PROTO / "lorry", pathlib.Path(base_dir, "proto", "lorry"))


with tempfile.TemporaryDirectory() as scratch:
    of_messages = floors(generate(pathlib.Path(scratch)))

setup(
    cmdclass={"build_py": BuildWithMessages, "sdist": SourcesWithMessages},
    install_requires=[
        *of_messages,
        "googleapis-common-protos>=1.60",
        "grpcio-status>=1.60",
        "numpy>=1.24",
        "safetensors>=0.4",
        "tqdm>=4.60",
        "xxhash>=3.2",
    ],
)
