"""The table of transfer peers: figures where there are some, reasons where there are none, and nothing left behind."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
from testing import waiting

PEERS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "transfer" / "peers"
HEAD = """
from peer import Peer as Base
ROWS, PACKAGES, RECEIVERS, PRINTS = {"planted": {}}, (), 1, ("bare", "hashed")
class Peer(Base):
    def prepare(self): pass
"""


def start(tmp_path: pathlib.Path, planted: str = "", *runners: str) -> tuple[subprocess.Popen, pathlib.Path]:
    """A table of the named runners, and of one whose `transfer` is given; of 1 MB and one round."""
    (tmp_path / "runners").mkdir()
    for name in runners:
        shutil.copy(PEERS / "runners" / f"{name}.py", tmp_path / "runners")
    if planted:
        (tmp_path / "runners" / "planted.py").write_text(HEAD + planted)
    command = [sys.executable, "-B", str(PEERS / "table.py"), str(tmp_path), "--sizes", "1", "--receivers", "1", "--turns", "1", "--rounds", "1",
               "--runners", str(tmp_path / "runners"), "--json", str(tmp_path / "json")]
    (tmp_path / "temporary").mkdir()
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path / "temporary")}), tmp_path / "json"


def run(tmp_path: pathlib.Path, planted: str = "", *runners: str) -> tuple[str, dict[str, dict]]:
    table, file = start(tmp_path, planted, *runners)
    printed, _ = table.communicate(timeout=200)
    assert table.returncode == 0
    assert_nothing_left(table, tmp_path)
    return printed, {row["name"]: row for row in json.loads(file.read_text())["rows"]}


def assert_nothing_left(table: subprocess.Popen, tmp_path: pathlib.Path) -> None:
    assert not list((tmp_path / "temporary").iterdir())
    assert not list(pathlib.Path("/dev/shm").glob(f"lorry-peers-{table.pid}-*"))


def test_prints_figures_and_the_reason_of_a_peer_that_raises(tmp_path):
    printed, rows = run(tmp_path, "    def transfer(self): raise OSError('no such lane')\n", "memcpy", "safetensors_file")
    for name in ("memcpy", "safetensors file in memory"):
        (measured,) = rows[name]["rounds"]
        assert measured["bare"] > 0 and measured["hashed"] > 0 and rows[name]["failed"] is None
        assert f"| {name} | unknown | 1 |" in printed
    assert rows["planted"] == {"name": "planted", "bytes": 1_000_000, "receivers": 1, "failed": "OSError: no such lane", "rounds": [], "median_GBps": {}}
    assert "| planted | failed: OSError: no such lane | | | | | |" in printed


@pytest.mark.parametrize("planted, reason", [
    ("    def transfer(self): pass\n", "other bytes than were sent"),
    ("    def transfer(self):\n        import os; print('out of lanes', file=__import__('sys').stderr, flush=True); os._exit(3)\n", "out of lanes"),
    ("    def transfer(self):\n        if self.job.sends: self.exchange('')\n", "waits for words"),
], ids=["carries nothing", "ends", "waits alone"])
def test_a_peer_without_the_bytes_has_no_figure(tmp_path, planted, reason):
    _, rows = run(tmp_path, planted)
    assert reason in rows["planted"]["failed"] and not rows["planted"]["rounds"]


def test_a_peer_that_is_not_installed_says_what_to_run(tmp_path):
    _, rows = run(tmp_path, "    def transfer(self): pass\nPACKAGES = ('no-such-peer==1',)\n")
    assert "make bench-peers" in rows["planted"]["failed"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_interrupted_leaves_nothing(tmp_path, number):
    """A daemon that a peer has started in a session of its own ends, too."""
    pids = tmp_path / "pids"
    table, _ = start(tmp_path, f"""
    def transfer(self):
        import subprocess, threading
        daemon = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!"], stdout=subprocess.PIPE, text=True, start_new_session=True)
        with open({str(pids)!r}, "a") as file: file.write(daemon.stdout.readline())
        threading.Event().wait()
""")
    waiting.until(lambda: pids.exists() and len(pids.read_text().split()) == 2, "both processes in their round")
    table.send_signal(number)
    assert table.wait(60) == 128 + number
    table.stdout.close()
    for pid in pids.read_text().split():
        assert not pathlib.Path("/proc", pid).exists()
    assert_nothing_left(table, tmp_path)


def test_a_signal_is_not_lost_in_what_python_does_by_itself(tmp_path):
    """What is raised while an object goes is dropped by Python."""
    table, _ = start(tmp_path, """    def transfer(self): pass
import os, signal, sys
class Going:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(100): pass
if sys.argv[0].endswith("table.py"): Going()
""")
    table.communicate(timeout=60)
    assert table.returncode == 128 + signal.SIGTERM
    assert_nothing_left(table, tmp_path)
