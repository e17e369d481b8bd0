"""Generates the message classes from ../../proto before packaging; everything else is in pyproject.toml."""

from setuptools import setup
from setuptools.command.build_py import build_py

from generate import generate


class BuildWithMessages(build_py):
    def run(self) -> None:
        generate()
        super().run()


setup(cmdclass={"build_py": BuildWithMessages})
