"""A peer's turn: its processes started, some rounds measured, all of it gone again, whatever happens.

What the processes started ends with them: this process adopts what they leave behind, so that it finds and ends that, too.
Everything that they write lies in two folders of the turn's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from peer import Job
from testing import waiting

_PR_SET_CHILD_SUBREAPER = 36
# Ray takes ten seconds to start on an idle machine.
PREPARE_S = 180.0
GOODBYE_S = 5.0
END_S = 15.0
# A round may take this and a second for each 5 MB: a tenth of the slowest peer's speed.
ROUND_S = 30.0
SLOWEST = 5e6
WARM_UPS = 2


class Failed(Exception):
    """Why a peer has no figure."""


class Stopped(Exception):
    """A signal came."""


class Signals:
    """^C and SIGTERM, which end a turn where it waits for an answer. An exception of a signal's handler could come in the middle of what is
    done in the end, or be lost."""

    def __init__(self) -> None:
        self.came, wake = os.pipe()  # readable for good, as nobody reads it but `number`
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)

    def number(self) -> int:
        """The first that came."""
        return os.read(self.came, 1)[0]


@dataclasses.dataclass(frozen=True)
class Round:
    """Seconds from the signal to processes that wait until the last of them is done."""

    ping_ns: float | None
    state: str
    bare: float | None = None
    hashed: float | None = None


class Processes:
    """The sender and the receivers of one turn."""

    def __init__(self, runner: pathlib.Path, jobs: list[Job], packages: pathlib.Path | None, signals: Signals) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.came, selectors.EVENT_READ, Signals)
        self._unread = [b""] * len(jobs)
        self._logs = [pathlib.Path(job.folder) / f"log-{job.number}" for job in jobs]
        self._round_s = ROUND_S + jobs[0].receivers * jobs[0].bytes / SLOWEST
        here = pathlib.Path(__file__).resolve().parent
        path = [str(packages)] * (packages is not None) + [str(here)]
        folder, memory = jobs[0].folder, jobs[0].memory
        environment = os.environ | {"PYTHONPATH": ":".join(path), "TMPDIR": folder, "HOME": folder, "UCX_POSIX_DIR": memory}
        self._children = []
        for job, log in zip(jobs, self._logs):
            with log.open("wb") as stderr:
                child = subprocess.Popen([sys.executable, "-B", str(here / "worker.py"), str(runner), json.dumps(dataclasses.asdict(job))],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=environment, cwd=folder,
                                         start_new_session=True)
            os.set_blocking(child.stdout.fileno(), False)
            self._selector.register(child.stdout, selectors.EVENT_READ, job.number)
            self._children.append(child)

    def prepare(self) -> None:
        self._all({"do": "prepare"}, PREPARE_S)

    def round(self, number: int, hashed: bool) -> float:
        """Seconds of a round whose bytes are right."""
        expected = self._one(0, {"do": "fill", "number": number})["hash"]
        began = time.monotonic()
        answers = self._all({"do": "transfer", "hash": hashed}, self._round_s)
        took = time.monotonic() - began
        if not hashed:
            verified = [self._one(i, {"do": "verify"}) for i in range(1, len(self._children))]
        else:
            verified = answers[1:]
        wrong = [i + 1 for i, answer in enumerate(verified) if answer["hash"] != expected]
        if wrong:
            raise Failed(f"receiver {wrong[0]} has other bytes than were sent")
        own = [answer["seconds"] for answer in answers if answer["seconds"] is not None]
        return max(own) if own else took

    def close(self) -> None:
        """Asks them to end. Who does not is ended by end_descendants."""
        for child in self._children:
            with contextlib.suppress(OSError):
                child.stdin.close()
        end = time.monotonic() + GOODBYE_S
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, end - time.monotonic()))
        self._selector.close()

    def reap(self) -> None:
        for child in self._children:
            child.wait(END_S)
            child.stdout.close()

    def _one(self, number: int, command: dict) -> dict:
        self._send(number, command)
        return self._gather({number}, self._round_s)[number]

    def _all(self, command: dict, deadline_s: float) -> list[dict]:
        everyone = range(len(self._children))
        while True:
            for number in everyone:
                self._send(number, command)
            answers = self._gather(set(everyone), deadline_s)
            waiting_ones = ["say" in answers[number] for number in everyone]
            if not any(waiting_ones):
                return [answers[number] for number in everyone]
            if not all(waiting_ones):
                raise Failed(f"process {waiting_ones.index(True)} waits for words of process {waiting_ones.index(False)}, which is done")
            command = {"heard": [answers[number]["say"] for number in everyone]}

    def _send(self, number: int, command: dict) -> None:
        pipe = self._children[number].stdin
        try:
            pipe.write(json.dumps(command).encode() + b"\n")
            pipe.flush()
        except OSError:
            raise self._ended(number) from None

    def _gather(self, missing: set[int], deadline_s: float) -> dict[int, dict]:
        """One line of each. Raises Stopped when a signal came."""
        answers: dict[int, dict] = {}
        end = time.monotonic() + deadline_s
        while missing - answers.keys():
            ready = self._selector.select(max(0.0, end - time.monotonic()))
            if not ready:
                raise Failed(f"no answer within {deadline_s:.0f} s from process {min(missing - answers.keys())}")
            if any(key.data is Signals for key, _ in ready):
                raise Stopped
            for key, _ in ready:
                read = os.read(key.fd, 1 << 20)
                line, found, rest = (self._unread[key.data] + read).partition(b"\n")
                self._unread[key.data] = rest if found else line
                if found:
                    answers[key.data] = json.loads(line)
                    if "error" in answers[key.data]:
                        raise Failed(answers[key.data]["error"])
                elif not read:
                    raise self._ended(key.data)
        return answers

    def _ended(self, number: int) -> Failed:
        lines = self._logs[number].read_text(errors="replace").strip().splitlines()
        return Failed(f"process {number} ended: {lines[-1] if lines else 'without a word'}")


def measure(runner: pathlib.Path, row: dict, prints: tuple[str, ...], size: int, receivers: int, rounds: int, *, bin_dir: str,
            packages: pathlib.Path | None, state: Callable[[], tuple[float | None, str]], signals: Signals) -> list[Round]:
    """The rounds of one turn, each with the machine's state just before it. Raises Failed, Stopped."""
    with _folders() as (folder, memory):
        jobs = [Job(number, receivers, size, folder, memory, bin_dir, row) for number in range(receivers + 1)]
        processes = Processes(runner, jobs, packages, signals)
        try:
            processes.prepare()
            measured = []
            for count in range(WARM_UPS + rounds):
                seen = state()
                seconds = {what: processes.round(2 * count + at, what == "hashed") for at, what in enumerate(prints)}
                measured.append(Round(*seen, **seconds))
            return measured[WARM_UPS:]
        finally:
            processes.close()
            end_descendants()
            processes.reap()


@contextlib.contextmanager
def _folders() -> Iterator[tuple[str, str]]:
    with contextlib.ExitStack() as stack:
        made = []
        for where in (None, "/dev/shm"):
            made.append(tempfile.mkdtemp(prefix=f"lorry-peers-{os.getpid()}-", dir=where))
            stack.callback(shutil.rmtree, made[-1], ignore_errors=True)
        yield made[0], made[1]


def adopt_orphans() -> None:
    """From now on whoever loses its parent among this process' descendants becomes its child."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_descendants() -> None:
    """Kills whatever this process has started and adopted, until nothing is left."""
    waiting.until(lambda: not _kill_descendants(), "the end of what a peer left behind", END_S)


def _kill_descendants() -> list[int]:
    """Those that were found alive or unburied."""
    found = _descendants(os.getpid())
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return found


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *_descendants(child)]
    return found
