"""Sends images through ``lorry mover``, a child process: over shared memory where the store is on this host, else by gRPC.

The trainer's interpreter neither hashes nor sends, and whatever happens in UCX happens to the child. Where there is no ``lorry``
command, or the child fails in any way, :mod:`lorry.upload` sends what is missing by itself.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import IO, Any

from lorry import errors
from lorry.programs import find_program, hold

# Below this a child's answer would take longer than the bytes.
MOVED_BYTES_MIN = 16 << 20
# Many small pieces, such as the columns of a matrix, go together in one message of gRPC, and one by one by the mover.
PIECE_BYTES_MIN = 256 << 10

_log = logging.getLogger("lorry")


class MoverGone(Exception):
    """The child ended, was silent for too long, or said what nobody understands; what it had moved stays moved."""


class Mover:
    """One child process, which sends one image at a time. One thread calls ``push``; any may call ``kill``.

    Args:
        program: the ``lorry`` command.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, program: str) -> None:
        self._process = subprocess.Popen([program, "mover"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                         start_new_session=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)  # a child that does not read keeps nobody for longer than is said
        self._unread = b""
        hold(self._process)

    def push(self, request: dict[str, Any], idle_s: float, on_progress: Callable[[int], None]) -> str:
        """Sends what ``request`` names (clients/cli/verbs_mover.cc), and returns what carried it, ``"ucx-shm"`` or ``"grpc"``.

        Args:
            request: without the deadline, which is a day: the child is given up when it reads and says nothing for ``idle_s`` seconds.
            on_progress: called with the number of bytes that the store has acknowledged since the last call.

        Raises:
            MoverGone: it cannot send anything any more.
            LorryError: the store refused, or could not be reached.
        """
        moved = 0
        try:
            self._write(json.dumps({**request, "deadline_ms": 86_400_000}).encode() + b"\n", idle_s)
            while True:
                said = self._line(idle_s)
                if "code" in said:
                    code, reason, message, transport = (str(said[key]) for key in ("code", "reason", "message", "transport"))
                    break
                on_progress(said["moved"] - moved)
                moved = said["moved"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.kill()
            raise MoverGone(str(error)) from None
        if code != "OK":
            raise errors.of(message, reason, code)
        return transport

    def _write(self, text: bytes, idle_s: float) -> None:
        left = memoryview(text)
        while left:
            if not _is_ready(self._stdin, select.POLLOUT, idle_s):
                raise OSError(f"it read nothing for {idle_s:.0f} s")
            left = left[os.write(self._stdin.fileno(), left) :]

    def _line(self, idle_s: float) -> dict[str, Any]:
        while b"\n" not in self._unread:
            if not _is_ready(self._stdout, select.POLLIN, idle_s):
                raise OSError(f"it said nothing for {idle_s:.0f} s")
            piece = os.read(self._stdout.fileno(), 65536)
            if not piece:
                raise OSError("it ended")
            self._unread += piece
        text, _, self._unread = self._unread.partition(b"\n")
        line: dict[str, Any] = json.loads(text)
        return line

    def kill(self) -> None:
        """Ends it at once. Nothing is lost: it holds no state."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """As ``kill``, and gives its pipes back. Only when nobody pushes."""
        self.kill()
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):
                pipe.close()


def _is_ready(pipe: IO[bytes], event: int, idle_s: float) -> bool:
    ready = select.poll()  # a trainer may have more descriptors than select knows
    ready.register(pipe, event)
    return bool(ready.poll(idle_s * 1000))


class Movers:
    """The children of one run, each used again and again: a start takes as long as 100 MB do. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Mover] = []
        # LORRY_MOVER names the program, or is "off".
        named = os.environ.get("LORRY_MOVER", "")
        self._program = None if named == "off" else (named or find_program())

    @property
    def shared_from(self) -> int | None:
        """Bytes of the smallest image that a child may be asked to send; None: there are no children."""
        return MOVED_BYTES_MIN if self._program is not None else None

    def take(self, spans: Sequence[tuple[int, int]]) -> Mover | None:
        """One that nobody uses, or a new one; None where these bytes had better be sent without."""
        size = sum(end - begin for begin, end in spans)
        if self._program is None or size < MOVED_BYTES_MIN or size < PIECE_BYTES_MIN * len(spans):
            return None
        with self._lock:
            if self._idle:
                return self._idle.pop()
        try:
            return Mover(self._program)
        except OSError as error:
            self.give_up(f"{self._program} cannot be started: {error.strerror}")
            return None

    def give(self, mover: Mover) -> None:
        """Gives one back that works."""
        with self._lock:
            if self._program is not None:
                self._idle.append(mover)
                return
        mover.close()

    def give_up(self, why: str) -> None:
        """From here on images go without: a program that failed once would fail each time."""
        _log.warning("images are sent by Python itself from here on, which is slower: %s", why)
        self._program = None

    def close(self) -> None:
        """Ends them."""
        with self._lock:
            self._program = None
            idle, self._idle = self._idle, []
        for mover in idle:
            mover.close()
