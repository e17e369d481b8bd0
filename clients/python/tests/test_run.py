"""What a run does with the store's answers. The store is a few functions; nothing is dialled here."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from lorry import collectives, connection, errors, on_the_way
from lorry.connection import Connection
from lorry.errors import Cancelled, LorryError
from lorry.handle import PublishHandle
from lorry.image import Image, Piece
from lorry.mover import Movers
from lorry.run import CORRUPT_MAX, Run, open_run
from lorry.store.v1 import store_pb2
from lorry.tries import Try
from lorry.upload import Uploader

STATE = {
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(4, 8),
    "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": torch.ones(8, 4),
}
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["q_proj"], "base_model_name_or_path": "tiny"}


class ForgetfulStore:
    """Lacks no byte; its commits say that the bytes have changed, so many times."""

    def __init__(self, corrupt: int) -> None:
        self.corrupt = corrupt
        self.begun = 0
        self.lock = threading.Lock()
        self.aborted: list[str] = []
        self.was_aborted = threading.Event()
        self.attempts: list[int] = []
        self.numbers: dict[str, int] = {}
        self.committed: list[int] = []
        self.kept: list[bool] = []
        self.configs: list[str] = []
        self.first_begun = threading.Event()

    def BeginUpload(self, request: store_pb2.BeginUploadRequest) -> store_pb2.BeginUploadResponse:
        with self.lock:  # several publishes may be on their way
            self.begun += 1
            upload_id = f"u{self.begun}"
        self.numbers[upload_id] = request.version.number
        self.attempts.append(request.attempt)
        self.kept.append(request.keep)
        self.configs.append(request.config_json)
        self.first_begun.set()
        return store_pb2.BeginUploadResponse(upload_id=upload_id, ticket=b"t", idle_deadline_ms=1000)

    def CommitUpload(self, request: store_pb2.CommitUploadRequest) -> store_pb2.CommitUploadResponse:
        if self.begun <= self.corrupt:
            raise LorryError("what arrived has changed since", "RANGE_CORRUPT", "DATA_LOSS")
        if self.numbers[request.upload_id] < max(self.committed, default=0):
            raise errors.of("numbers only increase within a run", "VERSION_TOO_OLD", "FAILED_PRECONDITION")
        self.committed.append(self.numbers[request.upload_id])
        return store_pb2.CommitUploadResponse()


    def AbortUpload(self, request: store_pb2.AbortUploadRequest) -> store_pb2.AbortUploadResponse:
        self.aborted.append(request.upload_id)
        self.was_aborted.set()
        return store_pb2.AbortUploadResponse()

    def GetUpload(self, request: store_pb2.GetUploadRequest) -> store_pb2.GetUploadResponse:
        return store_pb2.GetUploadResponse(state=store_pb2.GetUploadResponse.STATE_DEAD)


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        threading.Event().wait(0.01)


def run_on(store: ForgetfulStore) -> Run:
    def call(method: Callable[[Any], Any], request: Any, budget_s: float = 0.0, stop: threading.Event | None = None) -> Any:
        return method(request)

    connection = cast(Connection, SimpleNamespace(store=store, call=call, close=lambda: None))
    return Run(connection, "policy", 1, 1, collectives.Ranks())


def test_bytes_that_changed_at_the_store_are_sent_again() -> None:
    store = ForgetfulStore(corrupt=CORRUPT_MAX)
    run_on(store).publish(STATE, version=1, config=CONFIG).wait("stored", 30)
    assert store.begun == CORRUPT_MAX + 1


def test_bytes_that_change_every_time_are_told_of() -> None:
    store = ForgetfulStore(corrupt=1000)
    with pytest.raises(LorryError, match="RANGE_CORRUPT"):
        run_on(store).publish(STATE, version=1, config=CONFIG).wait("stored", 30)
    assert store.begun == CORRUPT_MAX + 1


def test_a_publish_that_is_cancelled_while_the_store_begins_it_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store, is_cancelled, sent = ForgetfulStore(corrupt=0), threading.Event(), []
    begin = store.BeginUpload

    def begin_late(request: store_pb2.BeginUploadRequest) -> store_pb2.BeginUploadResponse:
        answer = begin(request)
        assert is_cancelled.wait(30)
        return answer

    store.BeginUpload = begin_late  # type: ignore[method-assign]
    monkeypatch.setattr(Uploader, "send", lambda self, begun: sent.append(begun.upload_id))
    handle = run_on(store).publish(STATE, version=1, config=CONFIG)
    assert store.first_begun.wait(30)
    handle.cancel()
    with pytest.raises(Cancelled):
        handle.wait("stored", 30)
    assert not handle.done()
    is_cancelled.set()
    assert store.was_aborted.wait(30)
    assert (sent, store.aborted) == ([], ["u1"])


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> tuple[Run, threading.Semaphore]:
    """A run whose store is away, and what is released once for each call that was not answered."""
    unanswered = threading.Semaphore(0)
    monkeypatch.setattr(connection, "check_tls", lambda address, credentials: unanswered.release())
    return Run(Connection(store="127.0.0.1:1"), "policy", 1, 1, collectives.Ranks()), unanswered


def test_a_publish_can_be_cancelled_while_the_store_is_away(away: tuple[Run, threading.Semaphore]) -> None:
    run, unanswered = away
    handle = run.publish(STATE, version=1, config=CONFIG)
    assert unanswered.acquire(timeout=30)
    handle.cancel()
    with pytest.raises(Cancelled):
        handle.wait("stored", 30)
    until(handle.done)
    run.close()


def test_a_number_may_be_published_again_and_again_while_the_store_is_away(
    away: tuple[Run, threading.Semaphore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_the_way, "PUBLISH_BUDGET_S", 30.0)
    run, unanswered = away
    for _ in range(on_the_way.ON_THE_WAY_MAX + 1):
        replaced = run.publish(STATE, version=5, config=CONFIG)
        assert unanswered.acquire(timeout=30)
    last = run.publish(STATE, version=5, config=CONFIG)
    with pytest.raises(errors.AttemptFenced, match="published again"):
        replaced.wait("stored", 30)
    last.cancel()
    run.close()


@pytest.mark.parametrize("is_mover", [True, False])
def test_an_upload_that_is_cancelled_before_it_moves_never_does(monkeypatch: pytest.MonkeyPatch, is_mover: bool) -> None:
    image = cast(Image, SimpleNamespace(header=b"", pieces=[Piece(0, 10)], check=lambda: None, cancel=lambda: None))
    uploader = Uploader(cast(Connection, None), cast(Movers, None), image, lambda length: None)
    monkeypatch.setattr(uploader, "_move", lambda *_: is_mover)
    monkeypatch.setattr(uploader, "_stream", lambda *_: pytest.fail("it moved"))
    uploader.cancel()
    with pytest.raises(Cancelled):
        uploader.send(store_pb2.BeginUploadResponse(missing=[store_pb2.Range(offset=0, length=10)]))


def test_each_publish_of_a_number_is_an_attempt_of_its_own_until_one_is_stored() -> None:
    store = ForgetfulStore(corrupt=1000)
    run = run_on(store)
    for _ in range(2):
        with pytest.raises(LorryError, match="RANGE_CORRUPT"):
            run.publish(STATE, version=5, config=CONFIG).wait("stored", 30)
    store.corrupt = 0
    for number in (5, 5, 6):
        run.publish(STATE, version=number, config=CONFIG).wait("stored", 30)
    assert store.attempts == [1] * (CORRUPT_MAX + 1) + [2] * (CORRUPT_MAX + 1) + [3, 3, 1]


def test_a_publish_that_is_refused_counts_as_the_other_ranks_count_it() -> None:
    store = ForgetfulStore(corrupt=0)
    run = run_on(store)
    with pytest.raises(LorryError, match="TENSOR_UNKNOWN"):
        run.publish({}, version=5, config=CONFIG)
    run.publish(STATE, version=5, config=CONFIG).wait("stored", 30)
    assert store.attempts == [2]


def test_the_end_of_a_run_tells_of_what_was_lost_unless_somebody_was_told() -> None:
    run = run_on(ForgetfulStore(corrupt=1000))
    run.publish(STATE, version=5, config=CONFIG)
    with pytest.raises(LorryError, match=r"policy r1\.5 not stored when the run ended: RANGE_CORRUPT") as failure:
        run.close()
    assert failure.value.reason == "RANGE_CORRUPT"
    run = run_on(ForgetfulStore(corrupt=1000))
    with pytest.raises(LorryError, match="RANGE_CORRUPT"):
        run.publish(STATE, version=5, config=CONFIG).wait("stored", 30)
    run.close()


def test_the_end_of_a_run_tells_of_what_was_lost_before_others_were_stored() -> None:
    store = ForgetfulStore(corrupt=1000)
    run = run_on(store)
    for number in (5, 6, 7):
        lost = run.publish(STATE, version=number, config=CONFIG)
        until(lost.done)
    store.corrupt = 0
    run.publish(STATE, version=7, config=CONFIG).wait("stored", 30)  # so this one is not lost after all
    with pytest.raises(LorryError, match=r"policy r1\.5, policy r1\.6 not stored when the run ended: RANGE_CORRUPT"):
        run.close()


def test_of_many_that_were_lost_the_log_tells_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(on_the_way, "LOST_MAX", 0)
    monkeypatch.setattr(on_the_way, "_log", SimpleNamespace(error=lambda text, *words: said.append(text % words)))
    run = run_on(ForgetfulStore(corrupt=1000))
    for number in range(on_the_way.ON_THE_WAY_MAX + 2):
        until(run.publish(STATE, version=number, config=CONFIG).done)
    assert [line[:26] for line in said] == ["policy r1.0 was not stored"]
    with pytest.raises(LorryError, match=r"policy r1\.1, .*, policy r1\.5 not stored"):
        run.close()


def test_a_publish_that_finds_no_thread_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ForgetfulStore(corrupt=0)
    run = run_on(store)

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for number in range(on_the_way.ON_THE_WAY_MAX + 1):
        with monkeypatch.context() as patch, pytest.raises(RuntimeError):
            patch.setattr(threading.Thread, "start", no_thread)
            run.publish(STATE, version=number, config=CONFIG)
    run.publish(STATE, version=9, config=CONFIG).wait("stored", 30)
    run.close()


def interrupted(monkeypatch: pytest.MonkeyPatch, run: Run, start: Callable[[threading.Thread], None]) -> PublishHandle:
    """A publish that an interrupt leaves after `start` was called instead of its thread's."""
    real = threading.Thread.start

    def interrupt(thread: threading.Thread) -> None:
        if not thread.name.startswith("lorry-publish"):
            return real(thread)
        start(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Thread, "start", interrupt)
        run.publish(STATE, version=5, config=CONFIG)
    return run._on_the_way._handles[-1]


def test_an_interrupt_while_the_thread_starts_leaves_it_the_image_and_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    store, is_asked, goes_on = ForgetfulStore(corrupt=0), threading.Event(), threading.Event()
    begin, start = store.BeginUpload, threading.Thread.start

    def begin_late(request: store_pb2.BeginUploadRequest) -> store_pb2.BeginUploadResponse:
        is_asked.set()
        assert goes_on.wait(30)
        return begin(request)

    store.BeginUpload = begin_late  # type: ignore[method-assign]
    run = run_on(store)

    def start_and_wait(thread: threading.Thread) -> None:
        start(thread)
        assert is_asked.wait(30)

    handle = interrupted(monkeypatch, run, start_and_wait)
    assert run._pool._free == [], "the thread still reads it"
    goes_on.set()
    with pytest.raises(Cancelled):
        handle.wait("stored", 30)
    until(lambda: len(run._pool._free) > 0)
    run.close()
    assert (len(run._pool._free), store.committed, store.aborted) == (1, [], ["u1"])


def test_an_interrupt_before_the_thread_runs_leaves_it_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    store, threads = ForgetfulStore(corrupt=0), list[threading.Thread]()
    run = run_on(store)
    handle = interrupted(monkeypatch, run, threads.append)
    assert handle.done() and len(run._pool._free) == 1
    threads[0].start()
    threads[0].join(30)
    assert (len(run._pool._free), store.begun) == (1, 0)


def test_what_is_stored_stays_so_when_its_number_is_published_again() -> None:
    handle = run_on(ForgetfulStore(corrupt=0)).publish(STATE, version=5, config=CONFIG)
    handle.wait("stored", 30)
    handle._replace()
    handle._check_cancelled()


def test_an_interrupt_of_the_end_of_a_run_cancels_what_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    store, goes_on = ForgetfulStore(corrupt=0), threading.Event()

    def commit(request: store_pb2.CommitUploadRequest) -> store_pb2.CommitUploadResponse:
        assert goes_on.wait(30)
        raise LorryError("", "RANGES_MISSING")

    store.CommitUpload = commit  # type: ignore[method-assign]
    run = run_on(store)
    handle = run.publish(STATE, version=5, config=CONFIG)
    assert store.first_begun.wait(30)
    monkeypatch.setattr(on_the_way, "SAID_AFTER_S", 0.01)
    monkeypatch.setattr(on_the_way, "_log", SimpleNamespace(warning=lambda *_: signal.raise_signal(signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt):
        run.close()
    goes_on.set()
    with pytest.raises(Cancelled):
        handle.wait("stored", 30)


@pytest.mark.parametrize("corrupt", [0, 1000])
def test_a_handle_that_has_ended_holds_no_image(monkeypatch: pytest.MonkeyPatch, corrupt: int) -> None:
    """Neither do the errors of those that were lost, which a run keeps for its end."""
    images: list[weakref.ref[Image]] = []
    memory: list[weakref.ref[Any]] = []
    run = run_on(ForgetfulStore(corrupt))
    let_go = run._let_go

    def noted(this: Try, handle: PublishHandle, image: Image) -> None:
        images.append(weakref.ref(image))
        memory.append(weakref.ref(image.data))
        let_go(this, handle, image)

    monkeypatch.setattr(run, "_let_go", noted)
    monkeypatch.setattr(run._pool, "give", lambda buffer: None)  # which is for the next image
    handle = run.publish(STATE, version=1, config=CONFIG)
    until(lambda: len(memory) > 0 and memory[0]() is None)
    assert handle.done() and (handle._error is not None) == (corrupt > 0)
    until(lambda: corrupt > 0 or images[0]() is None)


def test_a_checkpoint_names_the_newest_version_that_is_stored() -> None:
    run = run_on(ForgetfulStore(corrupt=0))
    assert run.state_dict() == {"adapter": "policy", "run": 1, "version": None}
    run.publish(STATE, version=5, config=CONFIG).wait("stored", 30)
    assert run.state_dict() == {"adapter": "policy", "run": 1, "version": 5}


def test_a_version_that_is_refused_is_none_to_go_on_from() -> None:
    run = run_on(ForgetfulStore(corrupt=1000))
    with pytest.raises(LorryError, match="RANGE_CORRUPT"):
        run.publish(STATE, version=5, config=CONFIG).wait("stored", 30)
    assert run.state_dict()["version"] is None


def test_a_fork_of_the_trainer_does_not_wait_for_the_parents_uploads() -> None:
    store, goes_on = ForgetfulStore(corrupt=0), threading.Event()
    commit = store.CommitUpload
    store.CommitUpload = lambda request: goes_on.wait(60) and commit(request)  # type: ignore[method-assign,assignment,return-value]
    run = run_on(store)
    run.publish(STATE, version=5, config=CONFIG)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends it where it waits
        run.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    goes_on.set()
    run.close()
    assert store.committed == [5]


def test_a_newer_version_is_stored_after_an_older_one_that_is_slow() -> None:
    store = ForgetfulStore(corrupt=0)
    run, goes_on = run_on(store), threading.Event()
    commit = store.CommitUpload

    def commit_in_turn(request: store_pb2.CommitUploadRequest) -> store_pb2.CommitUploadResponse:
        if request.upload_id == "u1":
            assert goes_on.wait(30)
        return commit(request)

    store.CommitUpload = commit_in_turn  # type: ignore[method-assign]
    older = run.publish(STATE, version=5, config=CONFIG)
    assert store.first_begun.wait(30)
    newer = run.publish(STATE, version=6, config=CONFIG)
    until(lambda: newer.done() or newer.status.detail.startswith("it comes after policy r1.5: UPLOADING"))
    goes_on.set()
    older.wait("stored", 30)
    newer.wait("stored", 30)
    assert store.committed == [5, 6]
    assert run.state_dict()["version"] == 6


def test_a_newer_version_that_waits_for_an_older_one_can_be_cancelled_and_goes_on_without_it() -> None:
    store, goes_on = ForgetfulStore(corrupt=0), threading.Event()
    run = run_on(store)
    commit = store.CommitUpload

    def commit_in_turn(request: store_pb2.CommitUploadRequest) -> store_pb2.CommitUploadResponse:
        if request.upload_id == "u1":
            assert goes_on.wait(30)
            raise LorryError("", "UPLOAD_DEAD")
        return commit(request)

    store.CommitUpload = commit_in_turn  # type: ignore[method-assign]
    run.publish(STATE, version=5, config=CONFIG)
    assert store.first_begun.wait(30)
    second = run.publish(STATE, version=6, config=CONFIG)
    third = run.publish(STATE, version=7, config=CONFIG)
    second.cancel()
    with pytest.raises(Cancelled):
        second.wait("stored", 30)
    goes_on.set()
    third.wait("stored", 30)
    assert store.committed == [7]


def test_a_publish_that_finds_no_room_for_long_says_what_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_the_way, "PUBLISH_BUDGET_S", 0.0)
    store, goes_on = ForgetfulStore(corrupt=0), threading.Event()
    commit = store.CommitUpload
    store.CommitUpload = lambda request: goes_on.wait(30) and commit(request)  # type: ignore[method-assign,assignment,return-value]
    run = run_on(store)
    for number in range(on_the_way.ON_THE_WAY_MAX):
        last = run.publish(STATE, version=number, config=CONFIG)
    with pytest.raises(LorryError, match=r"4 versions are on their way and none of them moves; policy r1\.0: UPLOADING") as failure:
        run.publish(STATE, version=on_the_way.ON_THE_WAY_MAX, config=CONFIG)
    assert failure.value.reason == "TOO_MANY_UPLOADS"
    goes_on.set()
    last.wait("stored", 30)
    assert store.committed == list(range(on_the_way.ON_THE_WAY_MAX))


def test_a_run_that_is_closed_publishes_nothing() -> None:
    store = ForgetfulStore(corrupt=0)
    with run_on(store) as run:
        run.publish(STATE, version=5, config=CONFIG)
    with pytest.raises(LorryError, match=r"^run 1 of policy is closed; publish inside the with block"):
        run.publish(STATE, version=6, config=CONFIG)
    assert store.committed == [5]


@pytest.mark.parametrize("version", ["13", -1, 1.0, None, 2**64])
def test_what_is_no_version_is_refused_where_it_is_given(version: Any) -> None:
    with run_on(ForgetfulStore(corrupt=0)) as run, pytest.raises(errors.Refused, match=r"version= is a whole number from 0 on, and .* is none"):
        run.publish(STATE, version=version, config=CONFIG)


def test_a_trainer_may_count_in_numbers_of_its_own() -> None:
    store = ForgetfulStore(corrupt=0)
    with run_on(store) as run:
        run.publish(STATE, version=torch.tensor(5), config=CONFIG)
    assert store.committed == [5]


def test_a_version_for_a_checkpoint_is_kept_and_others_are_not() -> None:
    store = ForgetfulStore(corrupt=0)
    run = run_on(store)
    run.publish(STATE, version=5, config=CONFIG, keep=True).wait("stored", 30)
    run.publish(STATE, version=6, config=CONFIG).wait("stored", 30)
    assert store.kept == [True, False]


@pytest.mark.parametrize(("state", "sentence"), [
    ({"adapter": "other", "run": 1, "version": 5}, "is a state of other, not of policy"),
    ({"version": 5}, "give what run.state_dict"),
])
def test_a_state_of_something_else_is_refused_before_anything_is_asked(state: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        open_run("policy", resume_from=state)


def test_a_config_as_peft_keeps_it_is_written_as_json() -> None:
    store = ForgetfulStore(corrupt=0)
    run_on(store).publish(STATE, version=1, config={**CONFIG, "exclude_modules": {"v_proj", "k_proj"}}).wait("stored", 30)
    assert json.loads(store.configs[0])["exclude_modules"] == ["k_proj", "v_proj"]


def test_a_rank_may_publish_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group=None: 3)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 8)
    assert (collectives.Ranks().rank, collectives.Ranks().world_size) == (3, 8)
    alone = collectives.Ranks(collectives.ALONE)
    assert (alone.rank, alone.world_size, alone.from_first(lambda: 7)) == (0, 1, 7)
