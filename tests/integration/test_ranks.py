"""Trainers at size: a thousand ranks, commits that take long, a store that is away. A store, and no engine."""

import contextlib
import multiprocessing
import threading
import time

import lorry
import lorry.connection
import lorry.on_the_way
import lorry.run
import lorry.upload
import numpy as np
import pytest
from lorry import errors
from lorry.collectives import Ranks
from testing.engines import free_port
from testing.fleet import Service
from testing.waiting import until

ADAPTER = "wide-policy"
RANKS = 1024
PROCESSES = 4
NAME = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
CONFIG = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}


@pytest.fixture
def store(bin_dir, tmp_path):
    """An adapter-store alone."""
    port = free_port()
    service = Service(bin_dir / "adapter-store", "store", tmp_path, {"listen": f"127.0.0.1:{port}"})
    service.address = f"127.0.0.1:{port}"
    try:
        yield service.start().wait_ready()
    finally:
        service.stop()


def adapter(width, rows=RANKS, seed=7):
    """Tensors of one module; `rows` output features."""
    noise = np.random.default_rng(seed)
    return {NAME.format("A"): noise.standard_normal((8, width), dtype=np.float32),
            NAME.format("B"): noise.standard_normal((rows, 8), dtype=np.float32)}


# --- A thousand ranks ---


def one_of(rank, count):
    """The Ranks of a process group that is not there."""
    ranks = Ranks()
    ranks.rank, ranks.world_size = rank, count
    return ranks


class Together(lorry.run.Run):
    """Commits when all the others do."""

    barrier: object

    def _commit(self, handle, begun, uploader):
        self.barrier.wait(240)
        return super()._commit(handle, begun, uploader)


def ranks_of_one_process(ranks, address, run, attempt, barrier, results):
    """Every rank with a connection of its own; tells each one's outcome."""
    insecure = lorry.connection.grpc.insecure_channel
    lorry.connection.grpc.insecure_channel = lambda target, options: insecure(
        target, [*options, ("grpc.use_local_subchannel_pool", 1)])
    Together.barrier = barrier
    whole = adapter(64)

    def publish(rank):
        try:
            rows = whole[NAME.format("B")][rank : rank + 1]
            state = {**whole, NAME.format("B"): lorry.Shard(rows, (RANKS, 8), (rank, 0))}
            own = Together(lorry.Connection(address), ADAPTER, run, attempt, one_of(rank, RANKS))
            handle = own.publish(state, config=CONFIG, version=1)
            handle.wait("stored", 300)
            results.put((rank, handle.digest))
            own.close()
        except BaseException as error:
            results.put((rank, repr(error)))

    threads = [threading.Thread(target=publish, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_thousand_ranks_commit_together(store):
    with lorry.open_run(ADAPTER, store=store.address) as run:
        spawn = multiprocessing.get_context("spawn")
        barrier, results = spawn.Barrier(RANKS), spawn.Queue()
        share = RANKS // PROCESSES
        processes = [
            spawn.Process(target=ranks_of_one_process, daemon=True,
                          args=(range(n * share, (n + 1) * share), store.address, run.number, 1, barrier, results))
            for n in range(PROCESSES)
        ]
        try:
            for process in processes:
                process.start()
            came = dict(results.get(timeout=400) for _ in range(RANKS))
        finally:
            for process in processes:
                process.join(10)
                process.kill()
    assert len(set(came.values())) == 1, [v for v in set(came.values()) if not v.startswith("sha256")][:5]
    assert next(iter(came.values())).startswith("sha256-xxh3:")


# --- Ranks that disagree on how often a number was published ---


def two_ranks(store, run):
    return [lorry.run.Run(lorry.Connection(store.address), ADAPTER, run.number, 1, one_of(rank, 2)) for rank in range(2)]


def rows_of(rank, state):
    half = RANKS // 2
    part = lorry.Shard(state[NAME.format("B")][rank * half : (rank + 1) * half], (RANKS, 8), (rank * half, 0))
    return {**state, NAME.format("B"): part}


def test_a_rank_that_publishes_alone_is_told_what_it_waits_for(store):
    """Long before the store gives the upload up, where ranks that died or forgot to publish leave it."""
    with lorry.open_run(ADAPTER, store=store.address) as run:
        alone, other = two_ranks(store, run)
        handle = alone.publish(rows_of(0, adapter(64)), config=CONFIG, version=1)
        until(lambda: handle.status.reason == "RANGES_MISSING", "it has sent its own")
        with pytest.raises(TimeoutError, match=f"{RANKS // 2 * 8 * 4} bytes of other ranks have not come: call publish"):
            handle.wait("stored", 0.01)
        other.publish(rows_of(1, adapter(64)), config=CONFIG, version=1).wait("stored", 60)
        handle.wait("stored", 60)


def test_a_rank_that_published_a_number_less_often_is_fenced(store):
    """And what the other sent first is in no image."""
    with lorry.open_run(ADAPTER, store=store.address) as run:
        ahead, behind = two_ranks(store, run)
        first, second = adapter(64), adapter(64, seed=8)
        begun = ahead.publish(rows_of(0, first), config=CONFIG, version=1)
        until(lambda: begun.bytes_done == begun.bytes_total, "the first is sent")
        again = ahead.publish(rows_of(0, second), config=CONFIG, version=1)
        until(lambda: again.bytes_done == again.bytes_total, "the second is sent")
        with pytest.raises(lorry.AttemptFenced):
            behind.publish(rows_of(1, second), config=CONFIG, version=1).wait("stored", 60)
        again.cancel()
        handles = [rank.publish(rows_of(n, second), config=CONFIG, version=2) for n, rank in enumerate((ahead, behind))]
        for handle in handles:
            handle.wait("stored", 60)
        assert handles[0].digest == handles[1].digest, "the next number is every rank's first"


def test_a_version_that_a_rank_meant_otherwise_is_told(store):
    """One rank's first publish of a number meets the other's first; the second of that other one cannot be what is stored."""
    with lorry.open_run(ADAPTER, store=store.address) as run:
        ahead, behind = two_ranks(store, run)
        first, second = adapter(64), adapter(64, seed=8)
        ahead.publish(rows_of(0, first), config=CONFIG, version=1)
        behind.publish(rows_of(1, second), config=CONFIG, version=1).wait("stored", 60)
        with pytest.raises(lorry.VersionConflict, match="which this process sent for it before"):
            ahead.publish(rows_of(0, second), config=CONFIG, version=1).wait("stored", 60)


# --- A trainer that is ahead of the store ---


def test_ranks_that_publish_ahead_wait_for_each_other_and_are_stored_in_order(store, monkeypatch, caplog):
    monkeypatch.setattr(lorry.on_the_way, "ON_THE_WAY_MAX", 2)
    monkeypatch.setattr(lorry.on_the_way, "SAID_AFTER_S", 0.05)
    numbers = range(6)
    states = [adapter(64, seed=number) for number in numbers]
    with lorry.open_run(ADAPTER, store=store.address) as run:
        ranks = two_ranks(store, run)
        handles, most = ([], []), [0, 0]

        def publish_all(n):
            for number in numbers:
                handles[n].append(ranks[n].publish(rows_of(n, states[number]), config=CONFIG, version=number))
                most[n] = max(most[n], sum(not handle.done() for handle in handles[n]))

        ahead, behind = (threading.Thread(target=publish_all, args=(n,), daemon=True) for n in range(2))
        ahead.start()
        until(lambda: "publish waits, as 2 versions are on their way" in caplog.text, "the first rank waits for the other")
        assert len(handles[0]) == 2
        behind.start()
        for thread in ahead, behind:
            thread.join(60)
        for pair in zip(*handles, strict=True):
            for handle in pair:
                handle.wait("stored", 60)
            assert pair[0].digest == pair[1].digest
        assert max(most) == 2
    with lorry.Admin(store.address) as admin:
        assert [v.number for v in admin.versions(ADAPTER)] == list(reversed(numbers))


# --- Columns ---


def test_columns_of_a_matrix_travel_together(store, monkeypatch):
    """Two ranks with half the columns each: a piece for every row, and a message for thousands of pieces."""
    sent = []
    together = lorry.upload.messages
    monkeypatch.setattr(lorry.upload, "messages", lambda cut: counted(together(cut), sent))
    rows = 4096
    whole = adapter(64, rows)
    with lorry.open_run(ADAPTER, store=store.address) as run:
        handles = []
        for rank in range(2):
            own = lorry.run.Run(lorry.Connection(store.address), ADAPTER, run.number, 1, one_of(rank, 2))
            columns = whole[NAME.format("B")][:, 4 * rank : 4 * rank + 4]
            state = {**whole, NAME.format("B"): lorry.Shard(columns, (rows, 8), (0, 4 * rank))}
            handles.append(own.publish(state, config=CONFIG, version=1))
        for handle in handles:
            handle.wait("stored", 60)
    assert len({handle.digest for handle in handles}) == 1
    pieces = sum(len(message) for message in sent)
    assert pieces >= 2 * rows
    assert len(sent) <= pieces / 1000, f"{len(sent)} messages for {pieces} pieces"


def counted(messages, into):
    for message in messages:
        into.append(message)
        yield message


# --- A commit that takes long ---


def test_a_commit_that_outlasts_its_calls_is_waited_for(store, monkeypatch):
    """The store answers CHECK_RUNNING to each call that ends before its check does, however long that takes."""
    answers = []
    of_the_store = errors.from_rpc_error

    def seen(error):
        failure = of_the_store(error)
        answers.append(failure.reason)
        return failure

    monkeypatch.setattr(errors, "from_rpc_error", seen)
    with lorry.open_run(ADAPTER, store=store.address) as run:
        run._connection.call = short_commits(run._connection)
        run.publish(adapter(1 << 21), config=CONFIG, version=1).wait("stored", 240)
    assert "CHECK_RUNNING" in answers, answers


def short_commits(connection):
    """`connection.call`, whose commits have a deadline that is over before the check of a large image."""
    call = connection.call

    def short(method, request, *patience):
        if "CommitUpload" not in str(getattr(method, "_method", "")):
            return call(method, request, *patience)
        return call(lambda r, timeout, metadata: method(r, timeout=COMMIT_DEADLINE_S, metadata=metadata), request, *patience)

    return short


# A hair above the margin that the store keeps for its answer, 200 ms.
COMMIT_DEADLINE_S = 0.21


# --- A store that is away for a minute ---


class FastClock:
    """`time`, twenty times as fast for what sleeps and gives up by it: a minute's outage takes three seconds."""

    RATE = 20.0

    def __init__(self):
        self._begin = time.monotonic()

    def monotonic(self):
        return self._begin + (time.monotonic() - self._begin) * self.RATE

    def sleep(self, seconds):
        threading.Event().wait(seconds / self.RATE)

    def time_ns(self):
        return time.time_ns()


@pytest.mark.parametrize("moment", ["begin", "send", "commit"])
def test_a_store_that_is_away_for_a_minute_is_waited_for(store, monkeypatch, moment):
    clock = FastClock()
    for module in (lorry.connection, lorry.upload, lorry.run):
        monkeypatch.setattr(module, "time", clock)
    with lorry.open_run(ADAPTER, store=store.address) as run, going_away(store, monkeypatch, moment, clock) as gone:
        handle = run.publish(adapter(1 << 18), config=CONFIG, version=1)
        handle.wait("stored", 120)
        assert gone.is_set()
        assert handle.digest.startswith("sha256-xxh3:")


@contextlib.contextmanager
def going_away(store, monkeypatch, moment, clock):
    """Kills the store when the publisher comes to `moment`, and starts it again 75 of the clock's seconds later."""
    gone, back = threading.Event(), threading.Event()
    at = {"begin": (lorry.run.Run, "_upload"), "send": (lorry.upload.Uploader, "_stream"), "commit": (lorry.run.Run, "_commit")}
    owner, name = at[moment]
    unchanged = getattr(owner, name)

    def kills_first(*arguments):
        if not gone.is_set():
            store.kill()
            gone.set()
        return unchanged(*arguments)

    def starts_again():
        gone.wait(60)
        end = clock.monotonic() + 75
        until(lambda: clock.monotonic() > end, "the outage is over")
        store.start().wait_ready()
        back.set()

    monkeypatch.setattr(owner, name, kills_first)
    thread = threading.Thread(target=starts_again)
    thread.start()
    try:
        yield gone
    finally:
        gone.set()
        thread.join()


def test_a_store_that_is_away_when_a_run_opens_is_waited_for_too(store):
    store.kill()
    opened = []
    thread = threading.Thread(target=lambda: opened.append(lorry.open_run(ADAPTER, store=store.address).number))
    thread.start()
    store.start().wait_ready()
    thread.join(60)
    assert opened == [1]


def test_what_the_machine_of_the_store_lost_is_sent_again(store, monkeypatch):
    """Nothing of the upload was on the disk when it crashed: the header, too, which came when the upload began."""
    commit, lost = lorry.run.Run._commit, []

    def crashes_first(*arguments):
        if not lost:
            store.kill()
            lost.extend((store.data_dir / "blobs" / "staging").iterdir())
            for file in lost:
                file.write_bytes(bytes(file.stat().st_size))
            store.start().wait_ready()
        return commit(*arguments)

    monkeypatch.setattr(lorry.run.Run, "_commit", crashes_first)
    with lorry.open_run(ADAPTER, store=store.address) as run:
        run.publish(adapter(1 << 12), config=CONFIG, version=1).wait("stored", 60)
    assert len(lost) == 1
