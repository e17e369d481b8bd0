"""What the child process that sends images may do to its parent: nothing. The children are small scripts."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn, cast

import pytest

from lorry import errors
from lorry.connection import Connection
from lorry.gpu import Packing
from lorry.image import Buffer, Image, Piece
from lorry.mover import MOVED_BYTES_MIN, PIECE_BYTES_MIN, Mover, MoverGone, Movers
from lorry.store.v1 import store_pb2
from lorry.upload import Uploader

REQUEST = {"image": "/proc/1/fd/1", "ranges": [(0, 10)]}
DONE = '{"code": "OK", "reason": "", "message": "", "transport": "ucx-shm"}'
MiB = 1 << 20

Child = Callable[[str], str]


@pytest.fixture
def child(tmp_path: pathlib.Path) -> Child:
    """child(body): a program; each line that it reads is `line`."""

    def make(body: str) -> str:
        script = tmp_path / "lorry"
        script.write_text(f"#!{sys.executable} -S\nimport json, os, sys, time\nfor line in sys.stdin:\n    {body}\n    sys.stdout.flush()\n")
        script.chmod(0o755)
        return str(script)

    return make


def push(program: str, idle_s: float = 30.0) -> tuple[str, list[int]]:
    mover, steps = Mover(program), []
    try:
        return mover.push(REQUEST, idle_s, steps.append), steps
    finally:
        mover.close()


def test_progress_is_told_in_steps(child: Child) -> None:
    program = child(f"print('{{\"moved\": 4}}\\n{{\"moved\": 10}}\\n' + {DONE!r})")
    assert push(program) == ("ucx-shm", [4, 6])


def test_one_child_sends_one_image_after_the_other(child: Child) -> None:
    mover = Mover(child(f"said = {DONE!r}.replace('ucx-shm', str(os.getpid())); print(said)"))
    try:
        assert mover.push(REQUEST, 30.0, print) == mover.push(REQUEST, 30.0, print)
    finally:
        mover.close()


def test_a_refusal_of_the_store_keeps_its_reason(child: Child) -> None:
    refusal = '{"code": "ABORTED", "reason": "RANGE_CONFLICT", "message": "other bytes", "transport": ""}'
    with pytest.raises(errors.LorryError, match="other bytes") as refused:
        push(child(f"print({refusal!r})"))
    assert (refused.value.reason, refused.value.code) == ("RANGE_CONFLICT", "ABORTED")


@pytest.mark.parametrize("body", ["os._exit(1)", "os.kill(os.getpid(), 6)", "print('what?')", "print('[]')", "print('{}')",
                                  "print('{\"moved\": \"all\"}')", "print('{\"code\": \"OK\"}')"])
def test_whatever_a_child_does_is_one_error(child: Child, body: str) -> None:
    with pytest.raises(MoverGone):
        push(child(body))


def test_a_child_that_says_nothing_is_ended(child: Child) -> None:
    with pytest.raises(MoverGone):
        push(child("time.sleep(600)  # tidy: allow sleep: it is ended before"), idle_s=0.2)


@pytest.fixture
def bounded() -> Iterator[None]:
    """What would wait for ever fails instead."""

    def over(*_: object) -> NoReturn:
        raise AssertionError("it waits without a limit")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("bounded")
def test_a_child_that_reads_nothing_is_ended(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "lorry"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    script.chmod(0o755)
    with contextlib.closing(Mover(str(script))) as mover, pytest.raises(MoverGone, match="read nothing"):
        mover.push({**REQUEST, "leaves": "x" * 200_000}, 0.2, print)


@pytest.mark.usefixtures("bounded")
def test_a_long_request_arrives_whole(child: Child) -> None:
    with contextlib.closing(Mover(child(f"print({DONE!r}.replace('ucx-shm', str(len(json.loads(line)['leaves']))))"))) as mover:
        assert mover.push({**REQUEST, "leaves": "x" * 2_000_000}, 30.0, print) == "2000000"


@pytest.fixture
def movers(child: Child, monkeypatch: pytest.MonkeyPatch) -> Movers:
    monkeypatch.setenv("LORRY_MOVER", child(f"print({DONE!r})"))
    return Movers()


def test_small_images_and_small_pieces_go_without(movers: Movers) -> None:
    assert movers.take([(0, MOVED_BYTES_MIN - 1)]) is None
    assert movers.take([(n * MiB, n * MiB + PIECE_BYTES_MIN - 1) for n in range(100)]) is None
    taken = movers.take([(n * MiB, n * MiB + PIECE_BYTES_MIN) for n in range(100)])
    assert taken is not None
    movers.give(taken)
    assert movers.take([(0, MOVED_BYTES_MIN)]) is taken
    movers.give(taken)
    movers.close()
    assert taken._process.poll() is not None
    assert movers.take([(0, MOVED_BYTES_MIN)]) is None


def test_one_that_comes_back_after_the_end_is_ended(movers: Movers) -> None:
    taken = movers.take([(0, MOVED_BYTES_MIN)])
    assert taken is not None
    movers.close()
    movers.give(taken)
    assert taken._process.poll() is not None


@pytest.mark.parametrize("named", ["off", "/nowhere/lorry"])
def test_without_a_program_there_is_none(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("LORRY_MOVER", named)
    assert Movers().take([(0, MOVED_BYTES_MIN)]) is None


def test_a_mover_whose_push_was_refused_is_there_for_the_next(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = '{"code": "ABORTED", "reason": "RANGE_CONFLICT", "message": "other bytes", "transport": ""}'
    monkeypatch.setenv("LORRY_MOVER", child(f"print({refusal!r})"))
    movers = Movers()
    image = Image(b"", Buffer(MOVED_BYTES_MIN, shared=True), [Piece(0, MOVED_BYTES_MIN)], [], False)
    uploader = Uploader(Connection(store="127.0.0.1:1"), movers, image, print)
    missing = [store_pb2.Range(offset=0, length=MOVED_BYTES_MIN)]
    with pytest.raises(errors.LorryError, match="other bytes"):
        uploader.send(store_pb2.BeginUploadResponse(missing=missing))
    (idle,) = movers._idle
    assert idle._process.poll() is None
    movers.close()


def test_what_the_store_has_already_is_sent(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to one address was lost, another rank's commit began, and the store refuses the same bytes at the next address."""
    said = '{"moved": 5}\n{"code": "FAILED_PRECONDITION", "reason": "UPLOAD_COMPLETE", "message": "every byte is here", "transport": "grpc"}'
    monkeypatch.setenv("LORRY_MOVER", child(f"print({said!r})"))
    movers, moved = Movers(), list[int]()
    image = Image(b"", Buffer(MOVED_BYTES_MIN, shared=True), [Piece(0, MOVED_BYTES_MIN)], [], False)
    uploader = Uploader(Connection(store="127.0.0.1:1"), movers, image, moved.append)
    uploader.send(store_pb2.BeginUploadResponse(missing=[store_pb2.Range(offset=0, length=MOVED_BYTES_MIN)]))
    assert moved == [5, MOVED_BYTES_MIN - 5]
    movers.close()


class SlowGpu:
    """Brings nothing until it is told to cancel."""

    def __init__(self) -> None:
        self.is_waited_for, self.is_cancelled = threading.Event(), threading.Event()

    def check(self) -> None: ...

    def leaf(self, index: int) -> None: ...

    def wait(self, end: int) -> int:
        self.is_waited_for.set()
        assert self.is_cancelled.wait(30)
        raise errors.Cancelled("", "", "CANCELLED")

    def cancel(self) -> None:
        self.is_cancelled.set()


def test_a_publish_from_a_gpu_that_is_cancelled_leaves_the_next_one_a_mover(movers: Movers) -> None:
    slow = SlowGpu()
    missing = store_pb2.BeginUploadResponse(missing=[store_pb2.Range(offset=0, length=MOVED_BYTES_MIN)])

    def uploader_of(packing: SlowGpu | None) -> Uploader:
        image = Image(b"", Buffer(MOVED_BYTES_MIN, shared=True), [Piece(0, MOVED_BYTES_MIN)], [], False, cast("Packing | None", packing))
        return Uploader(Connection(store="127.0.0.1:1"), movers, image, print)

    with ThreadPoolExecutor(1) as other:
        first = uploader_of(slow)
        sent = other.submit(first.send, missing)
        assert slow.is_waited_for.wait(30)
        mover = first._mover
        assert mover is not None
        first.cancel()
        with pytest.raises(errors.Cancelled):
            sent.result(30)
    assert mover._process.poll() is not None and movers._idle == []
    uploader_of(None).send(missing)
    assert len(movers._idle) == 1, "it went by a child"
    movers.close()


def test_a_forked_child_holds_no_pipe_and_may_close_what_it_has(child: Child) -> None:
    mover = Mover(child(f"print({DONE!r})"))
    assert mover._process.stdin is not None
    forked = os.fork()
    if forked == 0:
        fd = mover._process.stdin.fileno()
        is_null = os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev
        mover._process.stdin.close()  # as the interpreter does at its end
        os._exit(0 if is_null else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert mover.push(REQUEST, 30.0, print) == "ucx-shm"
    mover.close()
