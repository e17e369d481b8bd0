"""Lorry's programs, with the libraries that they need: `lorry`, and the three services that `lorry up` starts."""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent


def main() -> None:
    """Becomes the program by whose name it was called."""
    # A UCX of the host would offer its own modules to the one that came along.
    os.environ["UCX_MODULE_DIR"] = str(HERE / "lib" / "ucx")
    os.environ.setdefault("LORRY_PYTHON", sys.executable)  # `lorry bench-sync` is written in Python
    program = HERE / "bin" / pathlib.Path(sys.argv[0]).name
    os.execv(program, [str(program), *sys.argv[1:]])
