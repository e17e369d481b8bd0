"""Directory trees that hold exactly what a set of Debian packages installs: the images' root file systems, without a registry.

The files come from this machine, which has the packages installed (tools/packages.txt). They are hard links, so that a
tree costs no space and a second or two; whoever writes in one lays an overlay above it (`containers/sandbox.py`).
"""

from __future__ import annotations

import functools
import os
import pathlib
import re
import shutil
import subprocess

INFO = pathlib.Path("/var/lib/dpkg/info")
# The slim images leave these out, and no program needs them.
LEFT_OUT = re.compile(r"/usr/share/(doc|man|info|locale|lintian|bash-completion)/.+")
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
FIELDS = ("Package", "Essential", "Priority", "Provides", "Pre-Depends", "Depends")


class NotInstalled(Exception):
    """A package that an image installs is not on this machine."""


@functools.cache
def _installed() -> dict[str, dict[str, str]]:
    """Installed package → its fields."""
    shown = "\\t".join(f"${{{field}}}" for field in FIELDS)
    lines = subprocess.run(
        ["dpkg-query", "-W", f"-f=${{db:Status-Status}}\\t{shown}\\n"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    rows = [line.split("\t") for line in lines]
    return {row[1]: dict(zip(FIELDS, row[1:])) for row in rows if row[0] == "installed"}


@functools.cache
def _providers() -> dict[str, list[str]]:
    """Virtual package → the installed ones that provide it."""
    found: dict[str, list[str]] = {}
    for name, fields in _installed().items():
        for provided in filter(None, fields["Provides"].split(",")):
            found.setdefault(provided.split()[0].split(":")[0], []).append(name)
    return found


def chosen(alternatives: str) -> str | None:
    """The first of "a (>= 1) | b" that is installed."""
    for alternative in alternatives.split("|"):
        name = alternative.split()[0].split(":")[0]
        if name in _installed():
            return name
        if name in _providers():
            return _providers()[name][0]
    return None


def closure(packages: list[str]) -> set[str]:
    """The packages, what they depend on, and what every Debian system has. Recommendations are not followed."""
    base = {n for n, f in _installed().items() if f["Essential"] == "yes" or f["Priority"] == "required"} | {"apt"}
    found: set[str] = set()
    queue = [*packages, *sorted(base)]
    while queue:
        name = queue.pop()
        if name in found:
            continue
        if name not in _installed():
            raise NotInstalled(name)
        found.add(name)
        for field in ("Pre-Depends", "Depends"):
            for alternatives in filter(str.strip, _installed()[name][field].split(",")):
                if (needed := chosen(alternatives)) is not None:
                    queue.append(needed)
    return found


def _files(package: str) -> list[str]:
    (listing,) = [*INFO.glob(f"{package}.list"), *INFO.glob(f"{package}:*.list")][:1]
    return [line for line in listing.read_text().splitlines() if line not in ("", "/.") and not LEFT_OUT.match(line)]


def _place(path: str, root: pathlib.Path) -> None:
    source, target = pathlib.Path(path), root / path.lstrip("/")
    if source.is_symlink():
        if not target.is_symlink() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(os.readlink(source))
    elif source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        shutil.copystat(source, target)
    elif source.is_file() and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:  # another file system
            shutil.copy2(source, target)


def _place_alternatives(root: pathlib.Path) -> None:
    """/usr/bin/c++ → /etc/alternatives/c++ → /usr/bin/g++, as the packages' own scripts would link them."""
    for alternative in pathlib.Path("/etc/alternatives").iterdir():
        if not alternative.is_symlink():
            continue
        target = os.readlink(alternative)
        if (root / target.lstrip("/")).exists():
            _place(str(alternative), root)
    for folder in ("usr/bin", "usr/sbin"):
        for link in pathlib.Path("/", folder).iterdir():
            if link.is_symlink() and os.readlink(link).startswith("/etc/alternatives/"):
                if (root / os.readlink(link).lstrip("/")).is_symlink():
                    _place(str(link), root)


def make_root(packages: list[str], root: pathlib.Path) -> None:
    """Fills the empty directory `root`. Raises NotInstalled."""
    names = closure(packages)
    for name in MERGED:
        if pathlib.Path("/", name).is_symlink():
            (root / name).symlink_to(os.readlink(pathlib.Path("/", name)))
    (root / "usr").mkdir()
    for name in MERGED:
        (root / "usr" / name).mkdir()
    for package in sorted(names):
        for path in _files(package):
            _place(path, root)
    _place_alternatives(root)
    for folder in ("proc", "sys", "dev", "tmp", "etc", "root", "var/lib/apt/lists"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for kind in ("passwd", "group"):
        shutil.copy(f"/usr/share/base-passwd/{kind}.master", root / "etc" / kind)
    (root / "etc/shadow").touch(0o640)
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
    subprocess.run(["ldconfig", "-r", root], check=True)
    # What it would install is laid out already.
    apt = root / "usr/bin/apt-get"
    apt.unlink()
    apt.write_text("#!/bin/sh\nexit 0\n")
    apt.chmod(0o755)
