"""What `make demo` says to whoever watches it: on a small terminal, and where an engine does not start. Its run is test_real_demo.py's."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "examples"))

from demo.screen import Scene, Screen  # noqa: E402
from rich.console import Console  # noqa: E402
from testing.processes import Mark  # noqa: E402
from testing.stranger import Stranger, missing  # noqa: E402

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
import sys, tempfile
from testing import engines
from demo import work as demo

demo.engines.real = lambda kind, model, log_dir: engines.fake(kind, "/no/such/model", log_dir=log_dir)
sys.argv = ["demo", "--plain", "--folder", tempfile.mkdtemp()]
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


# What the demo's work is taken for here: it goes on whatever it is told, starts processes again and again, and each leaves a
# child behind as engines do, which heeds no SIGTERM every other time.
RESTLESS = """
import itertools, pathlib, signal, subprocess, sys

pathlib.Path(sys.argv[2], "log").touch()
signal.signal(signal.SIGTERM, lambda *_: None)
for i in itertools.count():
    script = "trap '' TERM; " * (i % 2) + "sleep 1000 & exec sleep %f" % (i % 5 / 1000)
    subprocess.Popen(["sh", "-c", script], start_new_session=True)
    print(i, flush=True)
"""
STAND_IN = """
import sys
import demo.__main__ as demo

demo.outlive.GRACE_S = 1.0
start = demo.os.posix_spawn
demo.os.posix_spawn = lambda path, work, *rest, **more: start(path, [path, "-c", sys.argv[1], *work[4:]], *rest, **more)
sys.exit(demo.main())
"""


@pytest.fixture
def restless(tmp_path):
    """Starts the demo with this work instead of its own; what a failed test leaves is killed."""
    mark = Mark()

    def start(work, stranger=None):
        own = {"PYTHONPATH": f"{ROOT / 'examples'}:{ROOT / 'tests'}", "TMPDIR": str(stranger.scratch if stranger else tmp_path)}
        enter = stranger.enter(mark.environment(own)) if stranger else []
        return subprocess.Popen([*enter, sys.executable, "-B", "-c", STAND_IN, work], env=mark.environment(os.environ) | own,
                                stdout=subprocess.PIPE), mark

    yield start
    for pid in mark.processes():
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whatever_the_work_is_at_nothing_is_left_of_it(restless, tmp_path, number):
    demo, mark = restless(RESTLESS)
    for _ in range(40):
        demo.stdout.readline()
    demo.send_signal(number)
    demo.communicate(timeout=60)
    assert demo.returncode == 128 + number
    assert mark.processes() == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_whoever_runs_it_nothing_is_left(restless, tmp_path):
    with Stranger(tmp_path / "scratch") as stranger:
        demo, mark = restless(RESTLESS, stranger)
        for _ in range(40):
            demo.stdout.readline()
        demo.send_signal(signal.SIGTERM)
        demo.communicate(timeout=60)
        assert demo.returncode == 128 + signal.SIGTERM
        assert mark.processes() == {}
        assert [*stranger.scratch.iterdir(), *stranger.shared.iterdir()] == []


def test_work_that_is_killed_leaves_nothing_but_its_folder(restless, tmp_path):
    demo, mark = restless(RESTLESS + "    if i == 40: import os; os.kill(os.getpid(), 9)")
    demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert mark.processes() == {}
    assert [path.name[:11] for path in tmp_path.iterdir()] == ["lorry-demo-"]


def test_words_that_it_does_not_know_leave_no_folder(bin_dir, tmp_path):
    done = subprocess.run([ROOT / "examples" / "demo" / "run", "--nonsense"], text=True, capture_output=True, timeout=300, check=False,
                          env=os.environ | {"BIN_DIR": str(bin_dir), "TMPDIR": str(tmp_path)})
    assert done.returncode == 2 and "--nonsense" in done.stderr, done
    assert list(tmp_path.glob("lorry-*")) == []
