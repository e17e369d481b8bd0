"""deploy/Dockerfile built without a daemon: every stage from its base, its COPY and its RUN instructions.

A stage whose base is Debian begins with the files of the packages that it installs and of no others (`testing/debian.py`); a
library that nobody installs is missing here as it would be in the image. The one addition is the compiler's cache beside
the compiler, so that sources which `make test` compiled already cost nothing here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import dockerfile
import sandbox
from sandbox import Mount, Sandbox
from testing import debian

# Compiled as `make test` compiles, which shares its cache; a release differs in its optimisation alone. The locale is part of
# the cache's key.
LOCALE = {name: value for name, value in os.environ.items() if name in ("LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES")}
BUILD_ARGUMENTS = {"PRESET": "ci", **LOCALE}
CACHE = pathlib.Path(
    subprocess.run(["ccache", "--get-config=cache_dir"], capture_output=True, text=True, check=True).stdout.strip()
)


@dataclasses.dataclass
class Image:
    layers: list[pathlib.Path]  # the uppermost first
    entrypoint: list[str]
    user: int

    def find(self, path: str) -> pathlib.Path:
        """A path of the image, where it lies on this machine."""
        found = [layer / path.lstrip("/") for layer in self.layers if (layer / path.lstrip("/")).exists()]
        assert found, f"the image has no {path}"
        return found[0]


def _key(stages: dict[str, dockerfile.Stage]) -> str:
    """Changes with everything that an image is made of."""
    hasher = hashlib.sha256(repr(stages).encode())
    for module in (debian, dockerfile, sandbox, sys.modules[__name__]):
        hasher.update(pathlib.Path(module.__file__).read_bytes())
    for stage in stages.values():
        for inside, source in sorted(dockerfile.copied(stage).items()):
            hasher.update(f"{inside}\0".encode() + hashlib.sha256(source.read_bytes()).digest())
    versions = subprocess.run(["dpkg-query", "-W"], capture_output=True, check=True).stdout
    return hashlib.sha256(hasher.digest() + versions).hexdigest()[:16]


class Builder:
    """Builds every stage below `folder`, or takes what an earlier run with the same inputs left there."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.stages = dockerfile.stages()
        self.folder = folder / _key(self.stages)
        if not (self.folder / "done").exists() and folder.exists():
            shutil.rmtree(folder)
        self.images: dict[str, Image] = {}

    def build(self) -> dict[str, Image]:
        is_new = not (self.folder / "done").exists()
        for name, stage in self.stages.items():
            self.images[name] = self._build_stage(name, stage, is_new)
        (self.folder / "done").touch()
        return self.images

    def _build_stage(self, name: str, stage: dockerfile.Stage, is_new: bool) -> Image:
        folder = self.folder / name
        working, user, entrypoint = "/", 0, []
        layers: list[pathlib.Path] = []
        if stage.base in self.images:
            base = self.images[stage.base]
            layers, user = list(base.layers), base.user
        else:
            layers.append(folder / "root")
            if is_new:
                layers[0].mkdir(parents=True)
                debian.make_root([*stage.packages(), *(["ccache"] if name == "build" else [])], layers[0])
        for number, (instruction, text) in enumerate(stage.steps):
            layer = folder / f"{number}-{instruction.lower()}"
            if instruction in ("COPY", "RUN"):
                if is_new and instruction == "COPY":
                    self._copy(text, working, layer)
                elif is_new:
                    self._run(text, working, layers, layer)
                layers.insert(0, layer)
            elif instruction == "WORKDIR":
                working = text
            elif instruction == "USER":
                user = int(re.match(r"\d+", text)[0])
            elif instruction == "ENTRYPOINT":
                entrypoint = stage.entrypoint()
        return Image(layers, entrypoint, user)

    def _copy(self, text: str, working: str, layer: pathlib.Path) -> None:
        if text.startswith("--from="):
            source, target = text.removeprefix("--from=").split(maxsplit=1)
            path, target = target.split()
            files = {target + os.path.basename(path): self.images[source].find(path)}
        else:
            files = dockerfile.copied(dockerfile.Stage("", [("COPY", text)]))
            files = {f"{working}/{inside}": source for inside, source in files.items()}
        for inside, source in files.items():
            (layer / inside.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, layer / inside.lstrip("/"))

    def _run(self, text: str, working: str, layers: list[pathlib.Path], layer: pathlib.Path) -> None:
        CACHE.mkdir(parents=True, exist_ok=True)
        sandbox = Sandbox(
            layers, [Mount(CACHE, "/ccache")], {"CCACHE_DIR": "/ccache", **BUILD_ARGUMENTS}, upper=layer, folder=working
        )
        done = sandbox.run(["sh", "-euc", text])
        assert done.returncode == 0, f"RUN {text}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
