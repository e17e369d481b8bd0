"""`make demo` as its users see it: it runs to its end, and leaves nothing behind when it is told to go."""

import os
import pathlib
import signal
import subprocess

import pytest
from testing.processes import Mark
from testing.waiting import until

pytestmark = pytest.mark.real
ROOT = pathlib.Path(__file__).resolve().parents[2]


class RunningDemo:
    """One run in a session of its own."""

    def __init__(self, bin_dir, folder, *arguments):
        self._mark, self._log = Mark(), folder / "log"
        self.folder = folder / "tmp"
        self.folder.mkdir()
        environment = self._mark.environment(os.environ) | {"BIN_DIR": os.fspath(bin_dir), "TMPDIR": os.fspath(self.folder)}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [ROOT / "examples" / "demo" / "run", "--plain", *arguments],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def log(self):
        return self._log.read_text(errors="replace")

    def processes(self):
        return self._mark.processes()

    def left_behind(self):
        return [*self.folder.glob("lorry-*"), *pathlib.Path("/dev/shm").glob(f"lorry-{self.process.pid}-*")]

    def kill(self):
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.wait(30)


@pytest.fixture
def start(bin_dir, tmp_path):
    demos = []

    def started(*arguments):
        demos.append(RunningDemo(bin_dir, tmp_path, *arguments))
        return demos[-1]

    yield started
    for demo in demos:
        demo.kill()


def test_the_demo_runs_to_its_end(start):
    demo = start("--versions", "4")
    assert demo.process.wait(600) == 0, demo.log()
    assert "✗" not in demo.log() and "answers recomputed with torch + peft" in demo.log(), demo.log()
    assert demo.processes() == {}
    assert demo.left_behind() == []


def is_starting(demo):
    return all(any(kind in line for line in demo.processes().values()) for kind in ("sglang", "vllm"))


def serves(demo):
    return "rollouts of v1" in demo.log()


@pytest.mark.parametrize(("how", "when", "within_s"), [(signal.SIGINT, is_starting, 60.0), (signal.SIGTERM, serves, 600.0)])
def test_a_demo_that_is_told_to_go_leaves_nothing(start, how, when, within_s):
    demo = start()
    until(lambda: when(demo) or demo.process.poll() is not None, "time to go", within_s)
    demo.process.send_signal(how)
    assert demo.process.wait(60) == 128 + how, demo.log()
    assert demo.processes() == {}
    assert demo.left_behind() == []
