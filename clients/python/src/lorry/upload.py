"""Sends an image's pieces to the adapter-store over ``lorry.transfer.v1.TransferService.Put``."""

from __future__ import annotations

import base64
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import grpc

from lorry import errors
from lorry.connection import PUBLISH_BUDGET_S, Connection, may_pass
from lorry.credentials import host_and_port
from lorry.image import Image
from lorry.mover import MOVED_BYTES_MIN, Mover, MoverGone, Movers
from lorry.store.v1 import store_pb2
from lorry.transfer.v1 import transfer_pb2, transfer_pb2_grpc

# Chunks end at multiples of the digest's leaf size, as the protocol asks.
CHUNK_BYTES = 1 << 20
# Pieces of one message, and their bytes: many small ones, such as the columns of a matrix, go together.
PIECES_MAX = 1 + 4096
# Messages that may be unanswered at a time: enough to fill a link, little enough to notice a stopped store.
UNANSWERED_MAX = 16
# A stream on which nothing is answered for this long is given up and resumed.
IDLE_DEADLINE_S = 30.0

T = TypeVar("T")
Span = tuple[int, int]  # offset, end


def intersect(mine: Iterable[Span], missing: Iterable[Span]) -> list[Span]:
    """The spans that are in both sorted lists."""
    out: list[Span] = []
    ours, theirs = list(mine), list(missing)
    i = j = 0
    while i < len(ours) and j < len(theirs):
        (begin, end), (low, high) = ours[i], theirs[j]
        if low < end and begin < high:
            out.append((max(begin, low), min(end, high)))
        if end < high:
            i += 1
        else:
            j += 1
    return out


def chunks(spans: Iterable[Span]) -> Iterator[Span]:
    """Cuts spans at multiples of CHUNK_BYTES."""
    for begin, end in spans:
        while begin < end:
            stop = min(end, (begin // CHUNK_BYTES + 1) * CHUNK_BYTES)
            yield begin, stop
            begin = stop


def messages(cut: Iterable[Span]) -> Iterator[list[Span]]:
    """Chunks that go together."""
    together: list[Span] = []
    size = 0
    for begin, end in cut:
        if together and (size + end - begin > CHUNK_BYTES or len(together) == PIECES_MAX):
            yield together
            together, size = [], 0
        together.append((begin, end))
        size += end - begin
    if together:
        yield together


class Uploader:
    """Sends one image, resuming after lost connections. One thread calls ``send``; any may call ``cancel``."""

    def __init__(self, connection: Connection, movers: Movers, image: Image, on_progress: Callable[[int], None]) -> None:
        self._connection = connection
        self._movers = movers
        self._image = image
        self._on_progress = on_progress
        self._cancelled = threading.Event()
        self._call: grpc.Call | None = None
        self._mover: Mover | None = None
        self._accepted = 0  # bytes, repeated ones too

    def cancel(self) -> None:
        """Makes ``send`` raise Cancelled soon."""
        self._cancelled.set()
        self._image.cancel()
        call, mover = self._call, self._mover  # send forgets them when they end
        if call is not None:
            call.cancel()
        if mover is not None:
            mover.kill()

    def send(self, begun: store_pb2.BeginUploadResponse) -> None:
        """Sends what is missing of this rank's pieces, and of the header, which every rank has; returns when the store has all of it.

        Raises:
            Cancelled, LorryError.
        """
        # The header went with BeginUpload, but a store whose machine crashed may have lost it like any bytes.
        mine = [(0, len(self._image.header)), *((p.offset, p.offset + p.length) for p in self._image.pieces)]
        missing = [(r.offset, r.offset + r.length) for r in begun.missing]
        pause_s, sent, give_up_at = 0.1, self._accepted, time.monotonic() + PUBLISH_BUDGET_S
        while True:
            left = intersect(mine, missing)
            if not left:
                return
            self._image.check()
            before = self._accepted
            if self._cancelled.is_set():  # before it began, or between two rounds
                raise _cancelled()
            try:
                if not self._move(begun, left):
                    self._stream(begun, left)
                return
            except (grpc.RpcError, errors.LorryError) as error:
                if self._cancelled.is_set():
                    raise _cancelled() from None
                failure = errors.from_rpc_error(error) if isinstance(error, grpc.RpcError) else error
                if failure.reason == "UPLOAD_COMPLETE":  # another rank commits: an answer was lost, and no byte
                    self._moved(sum(end - begin for begin, end in left) - (self._accepted - before))
                    return
                if not may_pass(failure) and failure.code != "CANCELLED":  # by our own watchdog
                    raise failure from None
            if self._accepted != sent:  # what moves has its budget anew
                pause_s, sent, give_up_at = 0.1, self._accepted, time.monotonic() + PUBLISH_BUDGET_S
            elif time.monotonic() + pause_s > give_up_at:
                raise failure
            if self._cancelled.wait(pause_s * random.uniform(0.5, 1.0)):
                raise _cancelled()
            pause_s = min(2 * pause_s, 2.0)
            answer = self._ask(self._connection.store.GetUpload, store_pb2.GetUploadRequest(upload_id=begun.upload_id))
            if answer.state == store_pb2.GetUploadResponse.STATE_DEAD:
                # What ended it is the answer to a commit, in the store's words.
                self._ask(self._connection.store.CommitUpload, store_pb2.CommitUploadRequest(upload_id=begun.upload_id))
                raise errors.of("the upload ended at the store", answer.reason, "ABORTED")
            missing = [(r.offset, r.offset + r.length) for r in answer.missing]

    def _ask(self, method: Callable[..., T], request: Any) -> T:
        return self._connection.call(method, request, PUBLISH_BUDGET_S, self._cancelled)

    def _move(self, begun: store_pb2.BeginUploadResponse, spans: list[Span]) -> bool:
        """Whether a child process sent them."""
        host, port = host_and_port(self._connection.store_address)
        mover = self._movers.take(spans) if self._image.buffer.path is not None and port else None
        if mover is None:
            return False
        works, self._mover = False, mover
        if self._cancelled.is_set():  # just before the mover was known
            mover.kill()
        # The address that the store advertises may be of a network that this host does not see: shared memory and gRPC both
        # begin at the one that control calls go to.
        request = {"image": self._image.buffer.path, "ticket": base64.b64encode(begun.ticket).decode(),
                   "addresses": [f"grpc://{_bracketed(host)}:{port}"], **self._connection.credentials.as_fields()}
        try:
            leaves = self._image.leaves()
            if leaves is not None:
                request["leaves"] = base64.b64encode(leaves).decode()
            while spans:  # once, unless the image is still on its way from a GPU
                end = self._image.wait(min(spans[0][0] + MOVED_BYTES_MIN, spans[-1][1]))
                now, spans = intersect(spans, [(0, end)]), intersect(spans, [(end, 1 << 63)])
                mover.push({**request, "ranges": [(b, e - b) for b, e in now]}, IDLE_DEADLINE_S, self._moved)
            works = True
        except MoverGone as error:
            if self._cancelled.is_set():
                raise _cancelled() from None
            self._movers.give_up(str(error))
            # What it sent is there, and what it did not is asked for again.
            raise errors.LorryError("the program that sends images ended", "", "UNAVAILABLE") from None
        except errors.LorryError:  # it said what the store did
            works = True
            raise
        finally:
            self._mover = None  # before the look at _cancelled: from here on nobody ends it
            if works and not self._cancelled.is_set():
                self._movers.give(mover)
            else:
                mover.close()
        return True

    def _moved(self, length: int) -> None:
        self._accepted += length
        self._on_progress(length)

    def _stream(self, begun: store_pb2.BeginUploadResponse, spans: list[Span]) -> None:
        # The address that the store advertises may be of a network that this host does not see; the channel
        # that control calls go over is known to work, and the store serves both on it.
        stub = transfer_pb2_grpc.TransferServiceStub(self._connection.store_channel)
        window = threading.BoundedSemaphore(UNANSWERED_MAX)
        ended = threading.Event()
        todo = list(messages(chunks(spans)))

        def requests() -> Iterator[transfer_pb2.PutRequest]:
            yield transfer_pb2.PutRequest(open=transfer_pb2.PutRequest.Open(ticket=begun.ticket))
            for together in todo:
                while not window.acquire(timeout=0.5):
                    if ended.is_set():
                        return
                try:
                    first, *more = (_chunk(self._image, begin, end) for begin, end in together)
                except errors.LorryError:  # of a GPU; the next round meets it again, where it can be raised
                    return
                yield transfer_pb2.PutRequest(chunk=first, more=more)

        call = stub.Put(requests(), metadata=self._connection.metadata(), timeout=24 * 3600)
        self._call = call
        if self._cancelled.is_set():  # just before the call was known
            call.cancel()
        idle = _Watchdog(call, IDLE_DEADLINE_S)
        try:
            accepted = 0
            for response in call:
                idle.touch()
                if response.WhichOneof("kind") == "accepted":
                    window.release()
                    length = sum(end - begin for begin, end in todo[accepted])
                    accepted += 1
                    self._moved(length)
            if accepted != len(todo):
                raise errors.LorryError(f"the store answered {accepted} of {len(todo)} messages", "", "UNAVAILABLE")
        finally:
            ended.set()
            idle.stop()
            self._call = None


def _cancelled() -> errors.Cancelled:
    return errors.Cancelled("the upload was cancelled", "", "CANCELLED")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _chunk(image: Image, begin: int, end: int) -> transfer_pb2.Chunk:
    image.wait(end)
    return transfer_pb2.Chunk(offset=begin, data=image.data[begin:end].tobytes(), checksum=image.checksum(begin, end))


class _Watchdog:
    """Cancels a call on which nothing happens for a while."""

    def __init__(self, call: grpc.Call, idle_s: float) -> None:
        self._call = call
        self._idle_s = idle_s
        self._last = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lorry-idle", daemon=True)
        self._thread.start()

    def touch(self) -> None:
        self._last = time.monotonic()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(1.0):
            if time.monotonic() - self._last > self._idle_s:
                self._call.cancel()
                return
