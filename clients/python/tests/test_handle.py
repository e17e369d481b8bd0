"""What a publisher makes of the orchestrator's words. The orchestrator is a few answers; nothing is dialled here."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from lorry import errors, handle
from lorry.common.v1 import adapter_pb2
from lorry.connection import PUBLISH_BUDGET_S, Connection
from lorry.errors import LorryError, SyncFailed
from lorry.sync.v1 import fleet_pb2, sync_pb2

UNKNOWN = sync_pb2.WatchSyncResponse(state=sync_pb2.SYNC_STATE_FAILED, reason="UNKNOWN_VERSION", detail="it is not stored")
WAITS = sync_pb2.WatchSyncResponse(state=sync_pb2.SYNC_STATE_WAITING, reason="TOO_FEW_ENGINES", detail="none is ready")
ACTIVE = sync_pb2.WatchSyncResponse(state=sync_pb2.SYNC_STATE_ACTIVE, epoch=7, active=2, members=2)


class Call:
    """A watch that says one thing and ends."""

    def __init__(self, answer: sync_pb2.WatchSyncResponse) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[sync_pb2.WatchSyncResponse]:
        return iter([self._answer])

    def cancel(self) -> None:
        pass


def stored(*answers: sync_pb2.WatchSyncResponse) -> handle.PublishHandle:
    """A version that is stored, and of which the orchestrator says these in turn, the last of them for ever."""
    left = list(answers)

    def watch(request: sync_pb2.WatchSyncRequest, **_: Any) -> Call:
        return Call(left.pop(0) if len(left) > 1 else left[0])

    connection = cast(Connection, SimpleNamespace(sync=SimpleNamespace(WatchSync=watch), metadata=lambda: []))
    made = handle.PublishHandle(connection, "policy", 1, 1, 0)
    made._stored(adapter_pb2.Version())
    return made


def test_what_the_orchestrator_has_not_heard_of_yet_is_asked_again() -> None:
    assert stored(UNKNOWN, UNKNOWN, ACTIVE).wait("serving", 30).epoch == 7


def test_what_the_orchestrator_never_hears_of_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "HEARD_WITHIN_S", 0.2)
    with pytest.raises(SyncFailed, match="UNKNOWN_VERSION"):
        stored(UNKNOWN).wait("serving", 30)


def test_engines_that_do_not_serve_it_yet_are_named_where_some_do(caplog: pytest.LogCaptureFixture) -> None:
    """A minute after the decision one that serves is enough."""
    half = sync_pb2.WatchSyncResponse(state=sync_pb2.SYNC_STATE_ACTIVE, epoch=7, active=1, members=3, progress=[
        sync_pb2.MemberProgress(member="a", active=True), sync_pb2.MemberProgress(member="b", state=fleet_pb2.RESIDENCY_STATE_LOADING),
        sync_pb2.MemberProgress(member="c", dropped="LOST")])
    assert stored(ACTIVE).wait("serving", 30).active == 2
    assert not caplog.records
    assert stored(half).wait("serving", 30).active == 1
    (record,) = caplog.records
    assert record.getMessage() == "policy r1.1 is served by 1 of 3 engines; the others answer with an older version, or not at all: b: LOADING, c: LOST"


def test_a_wait_without_a_timeout_ends_where_the_orchestrator_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "PUBLISH_BUDGET_S", 0.3)
    with contextlib.closing(Connection(store="127.0.0.1:1", orchestrator="127.0.0.1:1")) as connection:
        made = handle.PublishHandle(connection, "policy", 1, 7, 0)
        made._stored(adapter_pb2.Version())
        with pytest.raises(LorryError, match=r"policy r1\.7 is stored, and the orchestrator has not answered for"):
            made.wait("serving", None)


def test_a_watch_that_had_nothing_new_to_say_has_been_heard_until_it_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    """The orchestrator is away since then, and not since its last word."""
    now, left = [1000.0], [WAITS, ACTIVE]

    class Watch(Call):
        def __iter__(self) -> Iterator[sync_pb2.WatchSyncResponse]:
            yield self._answer
            now[0] += 2 * PUBLISH_BUDGET_S  # in silence
            raise grpc.RpcError

    monkeypatch.setattr(handle, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(errors, "from_rpc_error", lambda _: LorryError("it restarts", "", "UNAVAILABLE"))
    made = stored(ACTIVE)
    made._connection = cast(Connection, SimpleNamespace(
        sync=SimpleNamespace(WatchSync=lambda *_, **__: Watch(left.pop(0))), metadata=lambda: [], check_tls=lambda: None))
    assert made.wait("serving", None).epoch == 7


def test_a_wait_after_the_end_of_its_run_says_so() -> None:
    """gRPC's own ValueError is of a channel, which nobody who waits knows of."""
    connection = Connection(store="127.0.0.1:1", orchestrator="127.0.0.1:1")
    made = handle.PublishHandle(connection, "policy", 1, 7, 0)
    made._stored(adapter_pb2.Version())
    connection.close()
    with pytest.raises(LorryError, match=r"^policy r1\.7 is stored; its run is closed: wait inside the with block"):
        made.wait("serving", 30)
    assert made.wait("stored") is not None


def test_what_a_wait_is_for_is_said_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine without LoRA, or one that is away, ends no watch: whoever waits would see nothing, for ever."""
    words: list[str] = []
    said = threading.Event()

    def warning(text: str, *parts: object) -> None:
        words.append(text % parts)
        said.set()

    def watch(*_: Any, **__: Any) -> Iterator[sync_pb2.WatchSyncResponse]:
        yield WAITS
        assert said.wait(30)
        yield ACTIVE

    class Watch:
        def __init__(self) -> None:
            self._said = watch()

        def __iter__(self) -> Iterator[sync_pb2.WatchSyncResponse]:
            return self._said

        def cancel(self) -> None:
            pass

    monkeypatch.setattr(handle, "WAIT_SAID_AFTER_S", 0.01)
    monkeypatch.setattr(handle, "_log", SimpleNamespace(warning=warning))
    made = stored(ACTIVE)
    made._connection = cast(Connection, SimpleNamespace(sync=SimpleNamespace(WatchSync=lambda *_, **__: Watch()), metadata=lambda: []))
    assert made.wait("serving", 30).epoch == 7
    (word,) = words
    assert word.startswith("policy r1.1 is stored, and not serving yet: ")


def test_a_long_reason_is_cut_between_words_and_says_so() -> None:
    words = str(handle.Status("WAITING", "ENGINE_LORA_DISABLED", "start SGLang with --enable-lora, " * 10)).split()
    assert words.pop() == "…"
    assert words[-1] in ("start", "SGLang", "with", "--enable-lora,")
    assert str(handle.Status("WAITING", "NO_SLOT", "needs 3 slots")).endswith("needs 3 slots")
