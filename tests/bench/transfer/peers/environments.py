"""What peers need from PyPI, each in a folder of its own before the packages of .venv/dev, so that nothing of theirs meets a test.

The lists are closed: nothing is resolved, so that no wheel of torch or CUDA comes along.
"""

from __future__ import annotations

import hashlib
import pathlib
import shutil
import subprocess
import sys

from turn import Failed

ROOT = pathlib.Path(__file__).resolve().parents[4]
INSTALL_S = 900


def folder_of(name: str, packages: tuple[str, ...]) -> pathlib.Path:
    """A list that changes has another folder."""
    return ROOT / ".venv" / "peers" / f"{name}-{hashlib.sha256(repr((sys.version, packages)).encode()).hexdigest()[:12]}"


def packages_of(name: str, packages: tuple[str, ...], install: bool) -> pathlib.Path | None:
    """Where they are; None where nothing is needed. Raises Failed."""
    if not packages:
        return None
    folder = folder_of(name, packages)
    if not folder.exists():
        if not install:
            raise Failed("not installed: run make bench-peers")
        for old in folder.parent.glob(f"{name}-*"):
            shutil.rmtree(old)
        unfinished = folder.parent / f"{name}-unfinished"
        uv = ROOT / ".venv" / "uv" / "bin" / "uv"
        command = [str(uv), "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", str(unfinished), *packages]
        try:
            subprocess.run(command, check=True, timeout=INSTALL_S, capture_output=True, text=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise Failed(f"not installed: {(getattr(error, 'stderr', '') or str(error)).strip()[-300:]}") from None
        unfinished.rename(folder)
    return folder
