"""Run by a stranger's Python: publishes a directory with the client that is installed there. usage: publish.py DIRECTORY"""

import pathlib
import sys

import lorry

inside = pathlib.Path(lorry.__file__).resolve().is_relative_to(pathlib.Path(sys.prefix).resolve())
with lorry.open_run("from-a-package") as run:
    handle = run.publish(sys.argv[1], version=1)
    handle.wait("stored", timeout=60)
print(lorry.__version__, inside, handle.digest)
