"""Ranks with torch gloo, each publishing its own slices: what arrives is the whole; a rank that dies is noticed."""

import json
import multiprocessing
import os
import traceback

import lorry
import pytest
from testing import engines
from testing.engines import KINDS
from testing.world import ADAPTER, World

RANKS = 2
# Importing torch is most of what a rank does here: one process does it, and every rank is a fork of that one.
RANKS_OF = multiprocessing.get_context("forkserver")
RANKS_OF.set_forkserver_preload(["lorry", "safetensors.torch", "torch.distributed.device_mesh", "torch.distributed.tensor"])
# An upload without progress for so long is dead; also the life of tickets, so that a sync must fit in.
IDLE_S = 25
# A Python process that imports torch, on a busy machine.
DEADLINE_S = 150


def rank_main(rank, ranks, meeting, results, addresses, folder, job):
    """One rank's process: meets the others by a file, does its job, tells what came of it."""
    try:
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
        results.put((rank, "ok", JOBS[job](rank, addresses, folder)))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:
        results.put((rank, getattr(error, "reason", "") or type(error).__name__, f"{error}\n{traceback.format_exc()}"))


def halves(folder, rank, make):
    """The adapter in `folder`, every tensor cut in two by `make(tensor, dimension, rank)`: A by columns, B by rows."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "adapter_model.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text())
    return {k: make(v, 1 if "lora_A" in k else 0, rank) for k, v in tensors.items()}, config


def as_shard(tensor, dimension, rank):
    half = tensor.shape[dimension] // RANKS
    offset = tuple(half * rank if d == dimension else 0 for d in range(tensor.dim()))
    return lorry.Shard(tensor.narrow(dimension, half * rank, half), tuple(tensor.shape), offset)


def as_dtensor(tensor, dimension, rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(tensor, init_device_mesh("cpu", (RANKS,)), [Shard(dimension)])


def as_replicated_dtensor(tensor, dimension, rank):
    """HSDP: two replicas of two slices each."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    return distribute_tensor(tensor, init_device_mesh("cpu", (2, RANKS)), [Replicate(), Shard(dimension)])


def publish(make):
    def job(rank, addresses, folder):
        state, config = halves(folder, rank, make)
        with lorry.open_run(ADAPTER, **addresses) as run:
            handle = run.publish(state, config=config, version=1)
            handle.wait("serving", 60)
            return run.number, handle.digest, handle.bytes_total

    return job


def publish_whole(rank, addresses, folder):
    with lorry.open_run(ADAPTER, **addresses) as run:
        handle = run.publish(folder, version=1)
        handle.wait("serving", 60)
        return run.number, handle.digest, handle.bytes_total


def die_half_way(rank, addresses, folder):
    state, config = halves(folder, rank, as_shard)
    run = lorry.open_run(ADAPTER, **addresses)
    if rank == 1:
        os._exit(1)  # as by SIGKILL: nothing of its slices was sent
    run.publish(state, config=config, version=1).wait("stored", 4 * IDLE_S)


def open_where_one_names_no_store(rank, addresses, folder):
    if rank == 1:  # a node without LORRY_STORE, and without a `lorry up` of its own
        os.environ["XDG_STATE_HOME"], addresses = str(folder), {}
        os.environ.pop("LORRY_STORE", None)
    lorry.open_run(ADAPTER, **addresses)


JOBS = {
    "shards": publish(as_shard),
    "dtensors": publish(as_dtensor),
    "replicas": publish(as_replicated_dtensor),
    "whole tensors": publish_whole,
    "a death": die_half_way,
    "no store": open_where_one_names_no_store,
}


@pytest.fixture(scope="module")
def world(bin_dir, tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    pair = [engines.fake(kind, tiny / "model", log_dir=folder) for kind in KINDS]
    with World(bin_dir, folder, *pair, store_flags={"ticket-life-ms": IDLE_S * 1000}) as made:
        yield made


@pytest.fixture(scope="module")
def serving(world, make_adapter):
    """A version that serves before the ranks come."""
    with world.open_run() as run:
        return world.publish(run, 0, make_adapter(0))


def run_ranks(world, tmp_path, folder, job, ranks=RANKS, expect=None):
    """Starts the ranks; {rank: (outcome, what it returned or its error)}."""
    results = RANKS_OF.Queue()
    processes = [
        RANKS_OF.Process(
            target=rank_main,
            args=(rank, ranks, tmp_path / "meeting", results, world.fleet.addresses(), folder, job),
            daemon=True,
        )
        for rank in range(ranks)
    ]
    try:
        for process in processes:
            process.start()
        came = [results.get(timeout=DEADLINE_S) for _ in range(expect or ranks)]
        return {rank: (outcome, value) for rank, outcome, value in came}
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


@pytest.mark.parametrize("job", ["shards", "dtensors", "whole tensors"])
def test_slices_of_all_ranks_make_the_whole(world, serving, make_adapter, tmp_path, job):
    folder = make_adapter(500 + list(JOBS).index(job))
    results = run_ranks(world, tmp_path, folder, job)
    assert [results[r][0] for r in range(RANKS)] == ["ok"] * RANKS, results
    (run, digest, sent_0), (run_1, digest_1, sent_1) = results[0][1], results[1][1]
    assert (run, digest) == (run_1, digest_1)
    assert min(sent_0, sent_1) > 0.4 * max(sent_0, sent_1), "nobody sends for the others"
    world.published[digest] = run, 1, folder
    for member in KINDS:  # tokens follow from the file's bytes: it equals what safetensors wrote of the whole
        world.prove(world.doors[member].ask(ADAPTER), version=1, run=run)


def test_replicas_take_turns_and_nothing_is_sent_twice(world, serving, make_adapter, tmp_path):
    folder = make_adapter(550)
    results = run_ranks(world, tmp_path, folder, "replicas", ranks=2 * RANKS)
    assert {r[0] for r in results.values()} == {"ok"}, results
    assert len({r[1][:2] for r in results.values()}) == 1, "one run, one digest"
    file = (folder / "adapter_model.safetensors").read_bytes()
    assert sum(r[1][2] for r in results.values()) == len(file) - 8 - int.from_bytes(file[:8], "little")
    run, digest, _ = results[0][1]
    world.published[digest] = run, 1, folder
    world.prove(world.doors[KINDS[0]].ask(ADAPTER), version=1, run=run)


def test_a_rank_that_dies_is_noticed_by_the_other(world, serving, make_adapter, tmp_path):
    before = world.latest()
    results = run_ranks(world, tmp_path, make_adapter(600), "a death", expect=1)
    outcome, text = results[0]
    assert outcome in ("RANGES_MISSING", "UPLOAD_DEAD"), results
    assert "rank" in text or "progress" in text, text
    assert world.latest() == before
    for member in KINDS:
        assert world.doors[member].ask(ADAPTER).status == 200


def test_a_rank_that_cannot_open_the_run_is_told_to_all_and_fences_nobody(world, serving, tmp_path):
    with world.open_run() as run:
        before = run.number
    results = run_ranks(world, tmp_path, tmp_path, "no store")
    assert [results[r][0] for r in range(RANKS)] == ["NO_ADDRESS"] * RANKS, results
    said = {text.splitlines()[0] for _, text in results.values()}
    assert len(said) == 1 and "rank 1 of 2: no adapter-store named" in said.pop(), results
    with world.open_run() as run:
        assert run.number == before + 1
