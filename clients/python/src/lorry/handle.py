"""What ``publish`` returns: one version on its way from this process into every engine."""

from __future__ import annotations

import logging
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import grpc

from lorry import errors
from lorry.common.v1 import adapter_pb2
from lorry.connection import PUBLISH_BUDGET_S, Connection, may_pass
from lorry.store.v1 import store_pb2
from lorry.sync.v1 import fleet_pb2, sync_pb2

_log = logging.getLogger("lorry")
T = TypeVar("T")

# What fits on a terminal's line or two; `status` has all of it.
DETAIL_CHARACTERS_MAX = 160
MEMBERS_SHOWN_MAX = 4
# The orchestrator hears of a version from the store a moment after this process did; one that stood still, or has lost its
# way to the store, later. One that follows another store never does, and this is when its publisher is told.
HEARD_WITHIN_S = 30.0
# Whoever waits for engines is told what for after this long: most versions are served within a second or two.
WAIT_SAID_AFTER_S = 10.0


@dataclass(frozen=True)
class Serving:
    """How a sync ended well.

    Attributes:
        epoch: number of the decision; 0 where only "stored" was waited for.
        active: members whose door serves the version as ``latest``, or a later one.
        members: members of the pool, but for those that are declared dead. With more than are active, the others still answer
            with an older version, or not at all.
        wait_ms, stage_ms, commit_ms, activate_ms: how long each phase took, milliseconds.
    """

    epoch: int
    active: int
    members: int
    wait_ms: int = 0
    stage_ms: int = 0
    commit_ms: int = 0
    activate_ms: int = 0


_NO_ENGINE = "none is attached to the adapter's pool; wait for \"stored\" where that is meant"


@dataclass
class Status:
    """The latest that store and orchestrator said of the version.

    Attributes:
        state: UPLOADING (reason RANGES_MISSING: this rank is done and waits for others), STORED_AT_STORE, then a ``lorry.sync.v1.SyncState``: WAITING, STAGING, ..., ACTIVE.
        reason, detail: why it waits or failed.
        members: engine → ACTIVE where its door serves the version, why it takes no part (NO_SLOT, LOST, ...), or where
            the version stands on it: ABSENT, FETCHING, FETCHED, LOADING, LOADED, FAILED. Kept up while ``wait`` waits.
    """

    state: str = "UPLOADING"
    reason: str = ""
    detail: str = ""
    members: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """One short line, such as ``WAITING, NO_SLOT: needs 3 slots (a: FETCHING, b: LOADED)``."""
        detail = textwrap.shorten(self.detail, DETAIL_CHARACTERS_MAX, placeholder=" …")
        why = ": ".join(part for part in (self.reason, detail) if part)
        members = _shown(self.members)
        return self.state + (f", {why}" if why else "") + (f" ({members})" if members else "")


class PublishHandle:
    """Follows one version. Any thread.

    Attributes:
        adapter, run, number: the version.
        bytes_total: bytes that this rank sends.
        status: the latest that is known.
    """

    def __init__(self, connection: Connection, adapter: str, run: int, number: int, bytes_total: int) -> None:
        self.adapter = adapter
        self.run = run
        self.number = number
        self.bytes_total = bytes_total
        self.status = Status()
        self._connection = connection
        self._done = threading.Event()  # nobody works on it any more
        self._ended = threading.Event()  # _ended_by is set
        self._answered = threading.Event()  # either: whoever waits for "stored" need not wait for its thread
        self._bytes_done = 0
        self._version: adapter_pb2.Version | None = None
        self._error: BaseException | None = None
        self._is_told = False  # that it failed
        self._ended_by: errors.LorryError | None = None  # here, not at the store
        self._canceller: Callable[[], None] | None = None
        self._upload_id = ""
        self._watch: grpc.Call | None = None
        self._unknown_since: float | None = None  # to the orchestrator
        self._heard_at = 0.0  # of the orchestrator, while somebody waits for it

    @property
    def bytes_done(self) -> int:
        """Bytes of this rank's part that the store has verified."""
        return self._bytes_done

    @property
    def digest(self) -> str:
        """The stored version's digest; empty until it is stored."""
        return self._version.digest if self._version is not None else ""

    def done(self) -> bool:
        """True once it is stored, or failed."""
        return self._done.is_set()

    def wait(self, until: Literal["stored", "serving"] = "serving", timeout: float | None = 300.0) -> Serving:
        """Waits until the version is ``"stored"`` or ``"serving"``. Ctrl-C cancels the upload and is passed on.

        Args:
            until: ``"stored"``: whole and durable at the store. ``"serving"``: decided, and every member that can serve it does; a
                minute after the decision it is enough that one does. Where not all do, the log says how many, as does ``Serving``.
            timeout: seconds; None waits as long as the version does: for an engine, for a slot, for the end of a pin (OVERRIDDEN),
                and for an orchestrator that is away, ten minutes at most.

        Raises:
            Cancelled, RunFenced, AttemptFenced, VersionConflict, Refused, Superseded, LorryError;
            SyncFailed: it is stored and will not be served; TOO_FEW_ENGINES: its pool has no engine that could;
            TimeoutError: not yet; wait again.
        """
        if until not in ("stored", "serving"):
            raise ValueError(f'until is "stored" or "serving", not {until!r}')
        give_up_at = None if timeout is None else time.monotonic() + timeout
        try:
            if not self._answered.wait(timeout):
                why = f"; {self.status.detail}" if self.status.detail else ""
                raise TimeoutError(f"{self} is not stored yet: {self._bytes_done} of {self.bytes_total} bytes sent{why}")
            error = self._error if self._done.is_set() else self._ended_by
            if error is not None:
                self._is_told = True
                raise error
            return Serving(0, 0, 0) if until == "stored" else self._wait_serving(give_up_at)
        except KeyboardInterrupt:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Ends the upload at the store and every wait here. A version that is stored already stays stored."""
        self._end(errors.Cancelled(f"{self} was cancelled", "", "CANCELLED"))
        self._abort()

    def __str__(self) -> str:
        return f"{self.adapter} r{self.run}.{self.number}"

    # --- The orchestrator's side ---

    def _say_what_is_waited_for(self) -> None:
        _log.warning("%s is stored, and not serving yet: %s", self, self.status)

    def _wait_serving(self, give_up_at: float | None) -> Serving:
        said = threading.Timer(WAIT_SAID_AFTER_S, self._say_what_is_waited_for)  # the watch is silent while nothing changes
        said.daemon = True
        said.start()
        try:
            return self._await_serving(give_up_at)
        finally:
            said.cancel()

    def _await_serving(self, give_up_at: float | None) -> Serving:
        pause_s = 0.05
        self._heard_at = time.monotonic()
        while True:
            self._check_cancelled()
            left = None if give_up_at is None else give_up_at - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"{self} is stored, but not serving yet: {self.status}")
            try:
                answer = self._follow(left)
                if answer is not None:
                    return answer
            except grpc.RpcError as error:
                self._check_cancelled()
                failure = errors.from_rpc_error(error)
                if failure.code == "DEADLINE_EXCEEDED":
                    continue
                if not may_pass(failure) and failure.code not in ("NOT_FOUND", "CANCELLED"):
                    raise failure from None
                if failure.code == "UNAVAILABLE" and not failure.reason:
                    self._connection.check_tls()
                if give_up_at is None and time.monotonic() - self._heard_at > PUBLISH_BUDGET_S:
                    raise errors.of(f"{self} is stored, and the orchestrator has not answered for {PUBLISH_BUDGET_S:.0f} s, so that nobody knows "
                                    f"whether it is served: {failure.message}", failure.reason, failure.code) from None
                self.status = Status("UNKNOWN", failure.reason, failure.message)
            self._ended.wait(min(pause_s, left) if left is not None else pause_s)
            pause_s = min(2 * pause_s, 2.0)

    def _follow(self, timeout: float | None) -> Serving | None:
        request = sync_pb2.WatchSyncRequest(
            version=adapter_pb2.VersionRef(adapter=self.adapter, run=self.run, number=self.number)
        )
        try:
            call = self._connection.sync.WatchSync(request, timeout=timeout, metadata=self._connection.metadata())
        except ValueError:  # gRPC's, of a channel that is closed
            raise errors.LorryError(f"{self} is stored; its run is closed: wait inside the with block, or ask `lorry status`", "",
                                    "FAILED_PRECONDITION") from None
        self._watch = call
        is_heard = False
        try:
            for progress in call:
                is_heard = True
                ended = self._take(progress)
                if ended is not None:
                    return ended
        finally:
            if is_heard:  # until now, however long it had nothing new to say
                self._heard_at = time.monotonic()
            self._watch = None
            call.cancel()
        return None

    def _take(self, progress: sync_pb2.WatchSyncResponse) -> Serving | None:
        state = sync_pb2.SyncState.Name(progress.state).removeprefix("SYNC_STATE_")
        members = {p.member: _word(p) for p in progress.progress}
        self.status = Status(state, progress.reason, progress.detail, members)
        if progress.reason != "UNKNOWN_VERSION":
            self._unknown_since = None
        elif self._may_yet_be_heard_of():
            return None
        if state == "FAILED":
            raise errors.SyncFailed(f"{self}: {progress.detail}", progress.reason, "FAILED_PRECONDITION")
        if state == "SUPERSEDED":
            by = progress.superseded_by.number
            raise errors.Superseded(f"{self} was superseded by v{by}", by)
        if state not in ("ACTIVE", "STORED"):
            return None
        if progress.active == 0:  # of an empty pool, or of engines that all dropped out
            raise errors.SyncFailed(f"{self} is stored, and no engine serves it: {progress.detail or _NO_ENGINE}",
                                    progress.reason or "TOO_FEW_ENGINES", "FAILED_PRECONDITION")
        if progress.active < progress.members:
            late = _shown({name: word for name, word in members.items() if word != "ACTIVE"})
            _log.warning("%s is served by %d of %d engines; the others answer with an older version, or not at all%s", self, progress.active,
                         progress.members, late and f": {late}")
        t = progress.times
        return Serving(progress.epoch, progress.active, progress.members, t.wait_ms, t.stage_ms, t.commit_ms,
                       t.activate_ms)

    def _may_yet_be_heard_of(self) -> bool:
        if self._unknown_since is None:
            self._unknown_since = time.monotonic()
        return time.monotonic() - self._unknown_since < HEARD_WITHIN_S

    # --- The publishing thread's side ---

    def _ask(self, method: Callable[..., T], request: Any) -> T:
        """With a publish's patience, which ends with the handle."""
        return self._connection.call(method, request, PUBLISH_BUDGET_S, self._ended)

    def _advance(self, length: int) -> None:
        # Bytes that a restarted store lacks are sent, and reported, once more.
        self._bytes_done = min(self._bytes_done + length, self.bytes_total)

    def _set_canceller(self, canceller: Callable[[], None] | None) -> None:
        self._canceller = canceller
        if self._ended_by is not None and canceller is not None:
            canceller()

    def _set_upload(self, upload_id: str) -> None:
        self._upload_id = upload_id
        self._check_cancelled()  # while the store was asked

    def _check_cancelled(self) -> None:
        if self._ended_by is not None:
            raise self._ended_by

    def _replace(self) -> None:
        """The same number is published again. What is stored already stays a success."""
        if self._version is not None:
            return
        self._end(errors.AttemptFenced(f"{self} was published again; this publish of it is over", "ATTEMPT_FENCED",
                                       "FAILED_PRECONDITION"))

    def _end(self, why: errors.LorryError) -> None:
        self._ended_by = self._ended_by or why
        self._ended.set()
        self._answered.set()
        if self._watch is not None:
            self._watch.cancel()
        canceller = self._canceller  # its thread forgets it
        if canceller is not None and not self._done.is_set():
            canceller()

    def _abort(self) -> bool:
        if not self._upload_id or self._version is not None:
            return True
        request = store_pb2.AbortUploadRequest(upload_id=self._upload_id)
        try:
            self._connection.call(self._connection.store.AbortUpload, request, budget_s=2.0)
        except (errors.LorryError, ValueError):  # ValueError: the channel was closed
            return False  # the upload dies by its idle deadline
        return True

    def _is_lost(self) -> bool:
        """It failed, and nobody was told."""
        return self._error is not None and self._ended_by is None and not self._is_told

    def _say_missing(self, missing: int) -> None:
        """This rank has sent its part, and so many bytes are still missing."""
        if missing:
            self._say(f"{missing} bytes of other ranks have not come: call publish on every rank, and look for one that died",
                      "RANGES_MISSING")
        else:
            self._say("the store checks what it was sent", "CHECK_RUNNING")

    def _say(self, detail: str, reason: str = "") -> None:
        self.status = Status("UPLOADING", reason, detail)

    def _stored(self, version: adapter_pb2.Version) -> None:
        self._version = version
        self.status = Status("STORED_AT_STORE")
        self._done.set()
        self._answered.set()

    def _failed(self, error: BaseException) -> None:
        self._error = error = self._ended_by or error
        self.status = Status("FAILED", getattr(error, "reason", ""), str(error))
        self._done.set()
        self._answered.set()
        if self._ended_by is not None:
            self._abort()  # what the store began after it was ended here


def _shown(members: dict[str, str]) -> str:
    return ", ".join(f"{name}: {word}" for name, word in list(members.items())[:MEMBERS_SHOWN_MAX])


def _word(progress: sync_pb2.MemberProgress) -> str:
    if progress.active or progress.dropped:
        return "ACTIVE" if progress.active else progress.dropped
    state = fleet_pb2.ResidencyState.Name(progress.state).removeprefix("RESIDENCY_STATE_")
    return "ABSENT" if state == "UNSPECIFIED" else state
