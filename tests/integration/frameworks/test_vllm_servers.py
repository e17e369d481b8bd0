"""Frameworks that wrap vLLM in a server of their own, or tell its adapters apart by names of their own, at a vLLM's door: SkyRL, prime-rl and
OpenPipe ART, each by its own calls in its own order, under traffic; each answer by the bytes that its name stands for.

SkyRL: skyrl/backends/skyrl_train/inference_servers/remote_inference_client.py and workers/worker_dispatch.py at a956457.
prime-rl: src/prime_rl/utils/client.py and inference/vllm/server.py at 559b447.
ART: art/unsloth/service.py, megatron/distributed_service.py and serving_capabilities.py of openpipe-art 0.5.23.
"""

from __future__ import annotations

import os

import pytest
from engine_core import expected_tokens
from testing import engines
from testing.engines import http_json
from testing.frameworks import Asking, Framework, ok, write
from testing.world import ADAPTER, World

ROUNDS = int(os.environ.get("LORRY_ROUNDS", "12"))
CONTENTS = 40
SLOTS = 4
ARGS = ["--max-loras", "2", "--max-cpu-loras", str(SLOTS)]
BASE = "base"  # what the engine calls its base model
PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def world(bin_dir, tiny, root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    engine = engines.fake("vllm", tiny / "model", log_dir=folder, args=ARGS, switches={"base_for_unknown": True})
    with World(bin_dir, folder, engine, proxy_flags={"bindings-root": root}) as made:
        yield made


@pytest.fixture
def framework(world):
    return Framework(world, "vllm")


@pytest.fixture
def sources(make_adapter, request):
    first = 9000 + 100 * (sum(request.node.name.encode()) % 10)
    return lambda step: make_adapter(first + step % CONTENTS)


def wrong(answer, folder):
    wanted = expected_tokens(folder, answer.prompt, len(answer.tokens))
    return "" if answer.tokens == wanted else f"{answer.tokens} and not {wanted}"


def run(framework, steps, **asking):
    with Asking(framework, **asking) as clients:
        for _ in steps:
            pass
    clients.check(wrong)
    assert clients.answers > 0


def tokens_of(framework, name, salt):
    """SkyRL's and prime-rl's requests: tokens in, tokens out, with a salt for the prefix cache."""
    body = {"model": name, "token_ids": PROMPT, "sampling_params": {"max_tokens": 5, "temperature": 0}, "cache_salt": salt}
    status, reply = http_json("POST", framework.world.fleet.door(framework.member) + "/inference/v1/generate", body)
    assert status == 200, reply
    return reply["choices"][0]["token_ids"]


def skyrl(framework, sources, folder, rounds):
    """No pause: the adapter is swapped in place, from a directory that is written in place, then the prefix cache is reset. Every third
    time the engine is colocated: asleep until its weights are back, before which nothing is sent."""
    name = "skyrl-lora"
    assert framework.call("GET", "/get_world_size") == (200, {"world_size": 1})
    for step in range(rounds):
        source, sleeps = sources(step), step % 3 == 2
        if sleeps:
            framework.current = None
            ok(framework.call("POST", "/sleep?level=1"))
            ok(framework.call("POST", "/wake_up?tags=weights"))
        write(source, folder)
        status, reply = framework.call("POST", "/skyrl/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        assert status == 200 and reply["status"] == "ok" and reply["lora_name"] == name, reply
        if sleeps:
            ok(framework.call("POST", "/wake_up?tags=kv_cache"))
        ok(framework.call("POST", "/reset_prefix_cache", {"reset_running_requests": True}))
        framework.current = name
        framework.answers_by(name, source)
        assert tokens_of(framework, name, f"{name}@{step}") == expected_tokens(source, PROMPT, 5)
        yield step


def test_skyrl(framework, sources, root, tmp_path):
    run(framework, skyrl(framework, sources, root / "skyrl_lora_sync", ROUNDS), asleep=True)
    status, reply = framework.call("POST", "/skyrl/v1/load_lora_adapter", {"lora_name": "skyrl-lora"})
    assert status == 400, reply
    status, reply = framework.call("POST", "/skyrl/v1/load_lora_adapter", {"lora_name": "skyrl-lora", "lora_path": str(tmp_path)})
    assert status == 400 and "bindings-root" in reply["detail"], reply
    status, reply = framework.call("POST", "/skyrl/v1/generate", {"model": "skyrl-lora", "token_ids": PROMPT})
    assert status == 403 and "/inference/v1/generate" in str(reply), "SkyRL's own server does not serve adapters there"
    ok(framework.unload("skyrl-lora"))  # delete_model
    assert framework.ask("skyrl-lora").status == 404


def prime_rl(framework, sources, folder, rounds):
    """No pause. The adapter has the base model's name, and so do all requests; each step has a directory of its own."""
    for step in range(rounds):
        source, at = sources(step), folder / f"step_{step}"
        write(source, at)
        (at / "STABLE").touch()
        assert framework.call("POST", "/load_lora_adapter", {"lora_name": BASE, "lora_path": str(at)}) == (200, {"status": "ok"})
        framework.current = BASE
        framework.answers_by(BASE, source)
        assert tokens_of(framework, BASE, str(step)) == expected_tokens(source, PROMPT, 5)
        yield step


def test_prime_rl(framework, sources, root, world, make_adapter):
    folder = root / "broadcasts"
    folder.mkdir()
    run(framework, prime_rl(framework, sources, folder, ROUNDS))
    assert framework.call("POST", "/load_lora_adapter", {"lora_name": BASE, "lora_path": str(folder / "nothing")})[0] == 404, "it tries again"
    listed = [card["id"] for card in framework.call("GET", "/v1/models")[1]["data"]]
    assert BASE in listed
    assert framework.ask("@base").status == 400, "its base model is asked for by nobody"
    # vLLM's own spelling, as before.
    ok(framework.load(BASE, folder / "step_1", load_inplace=True))
    framework.answers_by(BASE, sources(1))
    ok(framework.unload(BASE))
    assert framework.ask(BASE).reason == "NO_ADAPTER"
    # Or without a call of its own: what is published is served to whoever names the base model.
    world.admin.create(ADAPTER, {"no_adapter": "latest"})
    with world.open_run() as published:
        for number in (1, 2):
            world.publish(published, number, make_adapter(8800 + number))
            world.wait_serves(number)
            world.prove(framework.ask(BASE), version=number)
            assert tokens_of(framework, BASE, str(number)) == expected_tokens(make_adapter(8800 + number), PROMPT, 5)


def art(framework, sources, folder, rounds, model):
    """{model}@{step} for each step, of which the older ones are unloaded; an evaluation holds one of them under a name of its own for as
    long as it lasts; and one name is loaded in place, over and over."""
    held: int | None = None
    for step in range(rounds):
        source, at = sources(step), folder / f"{step:04d}"
        write(source, at)
        ok(framework.load(f"{model}@{step}", at, load_inplace=True))
        ok(framework.load(f"{model}:active", at, load_inplace=True))
        framework.current = f"{model}:active"
        framework.answers_by(f"{model}@{step}", source)
        framework.answers_by(f"{model}:active", source)
        if step % 3 == 0:
            held = step
            ok(framework.load(f"{model}:eval@{held}", at))
        assert held is not None
        framework.answers_by(f"{model}:eval@{held}", sources(held))
        if step % 3 == 2:
            ok(framework.unload(f"{model}:eval@{held}"))
            assert framework.unload(f"{model}:eval@{held}")[0] == 404, "as one that is not there"
        if step > 0:
            ok(framework.unload(f"{model}@{step - 1}"))
        yield step


def test_art(framework, sources, root, world, make_adapter):
    told = framework.call("GET", "/art/capabilities")
    assert told == (200, {"runtime": "openai_compatible", "protocol_version": 0, "inplace_lora_load": True})
    folder = root / "art"
    folder.mkdir()
    run(framework, art(framework, sources, folder, ROUNDS, "model"))
    # A name that reads like a version of an adapter that was published is the framework's for as long as it is bound.
    with world.open_run() as published:
        world.publish(published, 3, make_adapter(8903))
        world.wait_serves(3)
        write(make_adapter(8950), folder / "own")
        ok(framework.load(f"{ADAPTER}@3", folder / "own"))
        framework.answers_by(f"{ADAPTER}@3", make_adapter(8950))
        world.prove(framework.ask(ADAPTER), version=3)
        ok(framework.unload(f"{ADAPTER}@3"))
        world.prove(framework.ask(f"{ADAPTER}@3"), version=3)
