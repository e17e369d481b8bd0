"""Runs the demo's work in a process of its own, and ends whatever is left of it (testing/outlive.py)."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import shutil
import sys
import tempfile

from testing import outlive

SHOW_CURSOR = "\033[?25h\n"


def main() -> int:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lorry-demo-"))
    status, told = outlive.run([sys.executable, "-B", "-m", "demo.work", "--folder", os.fspath(folder), *sys.argv[1:]])
    if told and sys.stdout.isatty():
        print(SHOW_CURSOR, end="", flush=True)  # the work may have hidden it
    if told and not keeps():
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.rmdir()  # where the work ended before it began, at words that it does not know
    return 128 + told if told else status


def keeps() -> bool:
    """Of the work's own words (work.py), and as it reads them: also shortened."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--keep", action="store_true")
    return parser.parse_known_args()[0].keep


if __name__ == "__main__":
    sys.exit(main())
