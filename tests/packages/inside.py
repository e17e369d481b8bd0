"""Run where there is only Python: `lorry up` in front of an engine, one version published and served. Prints what was mapped,
and what the library that packs on a GPU says there.

usage: inside.py BIN_FOLDER ENGINE_URL ADAPTER_DIRECTORY
"""

import ctypes
import json
import pathlib
import signal
import subprocess
import sys

import lorry
from lorry.gpu import find_packer


def gpu() -> str:
    packer = find_packer()
    if packer is None:
        return "no library"
    try:
        packer.call("open", 0, ctypes.byref(ctypes.c_void_p()))
    except lorry.LorryError as error:
        return str(error)
    return "a GPU"


bin_folder, engine, adapter = sys.argv[1:]
log = open("up.log", "w")
up = subprocess.Popen([f"{bin_folder}/lorry", "up", "--json", "--engine", engine], stdout=subprocess.PIPE, stderr=log, text=True)
try:
    addresses = json.loads(up.stdout.readline() or "{}")
    with lorry.open_run("from-a-package") as run:  # found by itself
        serving = run.publish(adapter, version=1).wait("serving", timeout=120)
    mapped = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        program = (process / "exe").resolve()
        if program.parent.name == "bin" and program.parent.parent.name == "lorry_programs":
            lines = (process / "maps").read_text().splitlines()
            mapped[program.name] = sorted({line.split()[-1] for line in lines if ".so" in line.split()[-1]})
    print(json.dumps({"active": serving.active, "engines": addresses["engines"], "mapped": mapped, "gpu": gpu()}))
except BaseException:
    for name in pathlib.Path("/root").rglob("*"):
        if name.is_file() and "log" in name.name:
            print(name, name.read_text()[-2000:], file=sys.stderr)
    print(pathlib.Path("up.log").read_text(), file=sys.stderr)
    raise
finally:
    up.send_signal(signal.SIGTERM)
    sys.exit(up.wait(60)) if sys.exc_info()[0] is None else up.wait(60)
