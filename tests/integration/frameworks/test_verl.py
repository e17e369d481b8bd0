"""verl's calls to SGLang around the sync of an adapter, under traffic: nothing hangs, and each answer is by the bytes that its name stands for.

Of verl 0.9.1: checkpoint_engine/base.py (fully asynchronous: abort all, release the cache, sync, take it again, go on),
workers/engine_workers.py and workers/rollout/sglang_rollout/sglang_rollout.py (colocated: asleep without its cache, as an adapter leaves the
weights where they are). The adapter itself comes by way of a directory here, in the place of its tensors.
"""

from __future__ import annotations

import os

import pytest
from engine_core import expected_tokens
from testing import engines
from testing.frameworks import Asking, Framework, ok, write
from testing.world import World

ROUNDS = int(os.environ.get("LORRY_ROUNDS", "12"))
CONTENTS = 40
NAME = "verl_actor_lora_name"
CACHE = {"tags": ["kv_cache"]}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def world(bin_dir, tiny, root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    args = ["--max-loras-per-batch", "2", "--max-loaded-loras", "3"]
    engine = engines.fake("sglang", tiny / "model", log_dir=folder, args=args, switches={"leak_on_n": True, "implicit_reload": True})
    with World(bin_dir, folder, engine, proxy_flags={"bindings-root": root}) as made:
        yield made


@pytest.fixture
def framework(world):
    return Framework(world, "sglang")


def wrong(answer, folder):
    wanted = expected_tokens(folder, answer.prompt, len(answer.tokens))
    return "" if answer.tokens == wanted else f"{answer.tokens} and not {wanted}"


def load(framework, source, folder):
    """ServerAdapter.update_weights: unloaded where /v1/models lists it, then loaded."""
    models = framework.call("GET", "/v1/models")[1]
    if any(card["id"] == NAME for card in models["data"]):
        ok(framework.unload(NAME))
    write(source, folder)
    ok(framework.load(NAME, folder))


def fully_async(framework, sources, folder):
    for step in range(ROUNDS):
        ok(framework.call("POST", "/pause_generation", {"mode": "abort"}))
        ok(framework.call("POST", "/release_memory_occupation", CACHE))
        load(framework, sources(step), folder)
        ok(framework.call("POST", "/resume_memory_occupation", CACHE))
        ok(framework.call("GET", "/flush_cache"))
        ok(framework.call("POST", "/continue_generation", {}))
        framework.current = NAME
        framework.answers_by(NAME, sources(step))
        yield step


def colocated(framework, sources, folder):
    for step in range(ROUNDS):
        framework.current = None  # nothing is rolled out while it trains
        ok(framework.call("POST", "/release_memory_occupation", CACHE))
        load(framework, sources(step), folder)
        ok(framework.call("GET", "/flush_cache"))
        ok(framework.call("POST", "/resume_memory_occupation", CACHE))
        framework.current = NAME
        framework.answers_by(NAME, sources(step))
        yield step


def test_verl_fully_async(framework, make_adapter, root):
    """Its clients are not told of the sync: they ask all the while, and are answered once the engine goes on."""
    with Asking(framework) as clients:
        for _ in fully_async(framework, lambda step: make_adapter(9700 + step % CONTENTS), root / "async"):
            pass
    clients.check(wrong)
    assert clients.answers > 0


def test_verl_colocated(framework, make_adapter, root):
    with Asking(framework, gone=True, asleep=True) as clients:
        for _ in colocated(framework, lambda step: make_adapter(9750 + step % CONTENTS), root / "colocated"):
            pass
    clients.check(wrong)
    assert clients.answers > 0
