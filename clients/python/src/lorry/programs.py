"""Lorry's programs as children of this process. They come with the wheel ``lorry``, or are built from a checkout."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import weakref


def find_program() -> str | None:
    """The ``lorry`` command beside this Python, else on $PATH; None where there is none."""
    beside = pathlib.Path(sys.executable).with_name("lorry")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("lorry")


def find_library(name: str) -> pathlib.Path | None:
    """A library that is loaded into this process: of the wheel ``lorry`` beside this client, else where a build puts it, beside ``lorry``."""
    wheel, program = importlib.util.find_spec("lorry_programs"), find_program()
    folders = [pathlib.Path(wheel.origin).with_name("lib")] if wheel is not None and wheel.origin is not None else []
    folders += [pathlib.Path(program).parent] if program is not None else []
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def hold(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Lets ``process``, which ends with its stdin, end with this process, however that ends.

    A forked child (a data loader's worker) has a copy of the pipe, which would keep the program alive behind this process's back.
    """
    _held.add(process)


_held: weakref.WeakSet[subprocess.Popen[bytes] | subprocess.Popen[str]] = weakref.WeakSet()


def _let_go() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for process in _held:
        if process.stdin is not None and not process.stdin.closed:
            os.dup2(null, process.stdin.fileno(), inheritable=False)  # not closed: the number is the file object's to close
    os.close(null)


os.register_at_fork(after_in_child=_let_go)
