"""Test runs and the chaos campaign that are asked to end, at whatever they are: no process of theirs is left (testing/outlive.py)."""

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys

import pytest
from testing.engines import ROOT
from testing.processes import Mark
from testing.waiting import DEADLINE_S, moment, until

SEED = 20261126
# Four of these: a campaign's engines and services start, and its first faults.
SPAN_S = 3.0
# A test that starts processes without end and hears nothing: an exception of a signal's handler would be lost in it.
DEAF = """
import pathlib, subprocess

def test_that_hears_nothing():
    while True:
        try:
            process = subprocess.Popen(["sh", "-c", "sleep 1000 & exec sleep 0.01"], start_new_session=True)
            pathlib.Path("begun").touch()
            process.wait()
        except BaseException:
            pass
"""


@pytest.fixture
def begin(tmp_path, bin_dir):
    """Starts a program in a folder of its own; what a failed test leaves of it is killed."""
    mark = Mark()

    def start(*words):
        path = os.pathsep.join([str(ROOT / "tests"), *sys.path])
        environment = mark.environment(os.environ) | {"LORRY_BIN_DIR": str(bin_dir.resolve()), "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
        return subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), mark

    yield start
    while left := mark.processes():  # one that is killed may have started another meanwhile
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def deaf_run(begin, tmp_path):
    (tmp_path / "test_deaf.py").write_text(DEAF)
    run, mark = begin(sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider", "-p", "conftest", tmp_path / "test_deaf.py")
    until((tmp_path / "begun").exists, "the test runs")
    return run, mark


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_of_tests_that_hears_nothing_leaves_nothing(begin, tmp_path, number):
    run, mark = deaf_run(begin, tmp_path)
    run.send_signal(number)
    run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 128 + number
    assert mark.processes() == {}


def test_a_run_of_tests_does_not_outlive_who_waits_for_it(begin, tmp_path):
    run, mark = deaf_run(begin, tmp_path)
    run.kill()
    run.communicate(timeout=DEADLINE_S)
    until(lambda: not any("pytest" in words for words in mark.processes().values()), "it ends")


def test_a_run_of_tests_says_how_it_ended(begin, tmp_path):
    for body, status in ("pass", 0), ("assert False", 1):
        (tmp_path / "test_short.py").write_text(f"import subprocess\ndef test_short():\n    subprocess.Popen(['sleep', '1000'])\n    {body}\n")
        run, mark = begin(sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider", "-p", "conftest", tmp_path / "test_short.py")
        said, _ = run.communicate(timeout=DEADLINE_S)
        assert run.returncode == status, said
        assert mark.processes() == {}, "what the test forgot"


@pytest.mark.parametrize("wait_s", [round(random.Random(SEED + i).uniform(i, i + 1) * SPAN_S, 2) for i in range(4)])
def test_a_campaign_leaves_nothing(begin, wait_s):
    campaign, mark = begin(ROOT / "tests" / "chaos" / "run", "--seconds", "60", "--seed", str(SEED))
    moment(wait_s)
    begun = mark.processes()
    campaign.send_signal(signal.SIGTERM)
    said, _ = campaign.communicate(timeout=DEADLINE_S)
    assert campaign.returncode in (128 + signal.SIGTERM, -signal.SIGTERM), said  # the latter before it has anything to end
    assert mark.processes() == {}
    assert [left for pid in begun for left in pathlib.Path("/dev/shm").glob(f"lorry-{pid}-*")] == []
