"""Where Lorry's programs are. They come with ``pip install lorry``, or are built from a checkout."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys


def find_program() -> str | None:
    """The ``lorry`` command beside this Python, else on $PATH; None where there is none."""
    beside = pathlib.Path(sys.executable).with_name("lorry")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("lorry")
