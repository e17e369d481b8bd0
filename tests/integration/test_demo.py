"""What `make demo` says to whoever watches it: on a small terminal, and where an engine does not start. Its run is test_real_demo.py's."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "examples"))

from demo.screen import Scene, Screen  # noqa: E402
from rich.console import Console  # noqa: E402

LOADED = [{"engine_name": f"n{v}", "version": {"number": v}, "state": "RESIDENCY_STATE_LOADED", "in_flight": 1} for v in (98, 99)]
COMING = {"engine_name": "n100", "version": {"number": 100}, "state": "RESIDENCY_STATE_FETCHING", "bytes_done": 1, "bytes_total": 4}


def test_nothing_is_cut_on_a_terminal_of_80_columns():
    observed = {"residencies": [*LOADED, COMING], "rows": [{"target": "n99"}]}
    scene = Scene()
    scene.saw({"members": [{"member": "sglang", "state": "EXCLUDED", "observed": observed}]}, time.monotonic())
    screen = Screen(scene, None, plain=True)
    screen.clients = SimpleNamespace(rollouts=[SimpleNamespace(version=v) for v in range(96, 101) for _ in range(100)], failures=[])
    console = Console(width=80, record=True, file=open(os.devnull, "w"))
    console.print(screen._render())
    text = console.export_text()
    rows = [" ".join(line.strip("│ ").split()) for line in text.splitlines()]
    assert "engine state serves loaded on the way in flight" in rows, text
    assert "sglang EXCLUDED v99 v98 v99 v100 fetching 25 % v98: 1 v99: 1" in rows, text
    assert "by version: v96 100 v97 100 v98 100 v99 100 v100 100" in rows, text


# An engine that ends as it begins; everything else is as in `make demo`.
BROKEN = """
import sys
from testing import engines
import demo.__main__ as demo

demo.engines.real = lambda kind, model, log_dir: engines.fake(kind, "/no/such/model", log_dir=log_dir)
sys.argv = ["demo", "--plain"]
sys.exit(demo.main())
"""


def test_an_engine_that_does_not_start_is_told_with_its_log(bin_dir, tmp_path):
    path = os.pathsep.join([str(ROOT / "examples"), *sys.path])
    done = subprocess.run([sys.executable, "-c", BROKEN], text=True, capture_output=True, timeout=300, check=False,
                          env=os.environ | {"PYTHONPATH": path, "BIN_DIR": str(bin_dir), "TMPDIR": str(tmp_path)})
    assert done.returncode == 1, done
    assert re.search(r"about a minute, \d+ at most; logs: ", done.stdout), done.stdout
    said = re.search(r"^demo: (sglang|vllm) ended while starting:$.*^The logs stay in (\S+)$", done.stderr, re.MULTILINE | re.DOTALL)
    assert said, done.stderr
    assert len(done.stderr.splitlines()) < 60, done.stderr
    assert list(pathlib.Path(said[2]).rglob("*.log"))
    shutil.rmtree(said[2])
