"""`make demo` as its users see it: it runs to its end, and leaves nothing behind when it is told to go."""

import os
import pathlib
import signal
import subprocess
import uuid

import pytest
from testing.waiting import until

pytestmark = pytest.mark.real
ROOT = pathlib.Path(__file__).resolve().parents[2]


class RunningDemo:
    """One run in a session of its own, whose processes are known by a mark in their environment."""

    def __init__(self, bin_dir, folder, *arguments):
        self._mark, self._log = f"LORRY_TEST_MARK={uuid.uuid4()}", folder / "log"
        self.folder = folder / "tmp"
        self.folder.mkdir()
        name, _, value = self._mark.partition("=")
        environment = os.environ | {name: value, "BIN_DIR": os.fspath(bin_dir), "TMPDIR": os.fspath(self.folder)}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [ROOT / "examples" / "demo" / "run", "--plain", *arguments],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def log(self):
        return self._log.read_text(errors="replace")

    def processes(self):
        """Command lines of all that began with it, itself and children of children among them."""
        found = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it ended meanwhile
        return found

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
    assert list(demo.folder.glob("lorry-*")) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_told_to_go_leaves_nothing(start, how):
    demo = start()
    until(lambda: all(any(kind in line for line in demo.processes().values()) for kind in ("sglang", "vllm")), "engines start", 60.0)
    demo.process.send_signal(how)
    assert demo.process.wait(60) == 128 + how, demo.log()
    assert demo.processes() == {}
    assert list(demo.folder.glob("lorry-*")) == []
