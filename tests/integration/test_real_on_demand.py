"""Real SGLang and real vLLM with more adapters than slots: each is answered by its own weights, asked in turn and all at once."""

from __future__ import annotations

import concurrent.futures
import contextlib

import pytest
from testing.engines import KINDS, SLOTS
from testing.reference import Reference
from testing.world import World

pytestmark = pytest.mark.real
ADAPTERS = [f"demand{n}" for n in range(SLOTS + 1)]
TOKENS = 8
SERVING_S = 180.0
# A load and its probe take seconds each on a machine that is busy, and up to SLOTS of them come before.
POLICY = {"residency": "on_demand", "demand_wait_ms": 240_000}


@pytest.fixture(scope="module")
def world(bin_dir, tiny, make_adapter, engine_pair, tmp_path_factory):
    folders = {adapter: make_adapter(900 + n) for n, adapter in enumerate(ADAPTERS)}
    reference = Reference(tiny / "model", list(folders.values()))
    with World(bin_dir, tmp_path_factory.mktemp("fleet"), *engine_pair.values()) as made, contextlib.ExitStack() as stack:
        made.judge = reference.judge
        for adapter, folder in folders.items():
            made.admin.create(adapter, POLICY)
            run = stack.enter_context(made.open_run(adapter))
            made.publish(run, 1, folder, timeout=SERVING_S)
        yield made


def digest_of(world, adapter):
    (version,) = world.admin.versions(adapter)
    return version.digest


def check(world, adapter, answer):
    world.prove(answer, version=1)
    assert answer.digest == digest_of(world, adapter), f"{adapter} was answered by another's weights"


@pytest.mark.parametrize("member", KINDS)
def test_each_adapter_comes_back_with_its_own_weights(world, member):
    loads = world.metric(member, "lorry_proxy_demand_loads_total")
    for adapter in ADAPTERS:  # the one that was away longest comes first, so that each puts out the next
        check(world, adapter, world.doors[member].ask(adapter, tokens=TOKENS))
    assert world.metric(member, "lorry_proxy_demand_loads_total") - loads >= len(ADAPTERS) // 2, "they took turns"
    assert world.metric(member, "lorry_proxy_demand_evictions_total") >= len(ADAPTERS) // 2


def test_all_at_once_at_both_engines(world):
    asks = [(adapter, member) for adapter in ADAPTERS for member in KINDS]
    with concurrent.futures.ThreadPoolExecutor(len(asks)) as pool:
        answers = list(pool.map(lambda ask: world.doors[ask[1]].ask(ask[0], tokens=TOKENS), asks))
    for (adapter, _), answer in zip(asks, answers, strict=True):
        check(world, adapter, answer)
    assert all(world.engines[member].is_running() for member in KINDS)
