"""AReaL's client side at two doors of each kind: its five cases of loading and unloading as behaviours, its names wherever a request may
have them, and its path without LoRA."""

from __future__ import annotations

import itertools
import os
import threading

import pytest
from engine_core import expected_tokens, text_of
from testing import engines
from testing.areal import Areal
from testing.engines import KINDS, http_json
from testing.frameworks import Asking, Framework, write
from testing.waiting import until
from testing.workers import at_once
from testing.world import World

ROUNDS = int(os.environ.get("LORRY_ROUNDS", "12"))
CONTENTS = 40
KEEP = 4
ARGS = {
    "sglang": ["--max-loras-per-batch", "2", "--max-loaded-loras", "6"],
    "vllm": ["--max-loras", "2", "--max-cpu-loras", "6"],
}
BUGS = {"leak_on_n": True, "implicit_reload": True, "base_for_unknown": True}
PROMPT = "What is 3 + 4?"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module", params=KINDS)
def world(bin_dir, tiny, root, tmp_path_factory, request):
    folder, kind = tmp_path_factory.mktemp("fleet"), request.param
    pair = [engines.fake(kind, tiny / "model", log_dir=folder, args=ARGS[kind], switches=BUGS, name=f"{kind}-{n}") for n in (1, 2)]
    with World(bin_dir, folder, *pair, proxy_flags={"bindings-root": root}) as made:
        yield made


@pytest.fixture
def servers(world):
    return [Framework(world, member) for member in world.doors]


_names = itertools.count()


@pytest.fixture
def make(world):
    """make(keep): AReaL's client of both servers, with a name of its own."""
    kind = next(iter(world.engines.values())).kind
    urls = [world.fleet.door(member) for member in world.doors]
    return lambda keep: Areal(urls, kind, f"lora-gsm8k{next(_names)}", keep)


@pytest.fixture
def saved(make_adapter, root):
    """saved(version): its directory, weight_update_v{N}, and the bytes in it."""

    def save(version):
        source, at = make_adapter(9500 + version % CONTENTS), root / f"weight_update_v{version}"
        write(source, at)
        return at, source

    return save


def stands(server, name):
    """Whether the name stands for something at that server."""
    return server.ask(name).status == 200


def test_the_window_of_versions(make, saved, servers):
    """Its cases 1 and 4: load v10, then unload v6, if it can be."""
    client = make(KEEP)
    for version in range(6, 11):
        client.update(version, saved(version)[0])
    assert [r.payload["lora_name"].rpartition("-")[2] for r in client.sent if "unload" in r.endpoint] == ["v2", "v3", "v4", "v5", "v6"]
    assert all(r.best_effort for r in client.sent if "unload" in r.endpoint)
    assert len(client.ignored) == 4 * len(servers), "what was never loaded is the engine's own error, and ignored"
    for server in servers:
        assert not stands(server, client.name(6))
        for version in range(7, 11):
            server.answers_by(client.name(version), saved(version)[1])


def test_young_versions_and_keep_0_unload_nothing(make, saved, servers):
    """Its cases 2 and 3."""
    young, for_ever = make(KEEP), make(0)
    young.update(2, saved(2)[0])
    for_ever.update(99, saved(99)[0])
    for_ever.update(100, saved(100)[0])
    assert not [r for client in (young, for_ever) for r in client.sent if "unload" in r.endpoint]
    for server in servers:
        server.answers_by(young.name(2), saved(2)[1])
        for version in (99, 100):
            server.answers_by(for_ever.name(version), saved(version)[1])


def test_what_an_engine_was_launched_with_is_loaded_at_its_door(make, saved, servers, world):
    """As `--lora-paths {lora_name}-v0=...` does, which the door does not see."""
    client = make(KEEP)
    (request,) = client.disk_requests(0, saved(0)[0])
    for server in servers:
        status, reply = http_json("POST", world.engines[server.member].url + request.endpoint, request.payload)
        assert status == 200, reply
        assert server.ask(client.name(0)).status == 404
    client.run([request])
    for server in servers:
        server.answers_by(client.name(0), saved(0)[1])


def test_without_lora_the_disk_path_is_the_engines(make, saved, servers, world):
    """Its case 5. What is loaded beside it is served afterwards as before."""
    client = make(KEEP)
    client.update(1, saved(1)[0])
    before = {member: engine.state()["updates"] for member, engine in world.engines.items()}
    client.update(2, saved(2)[0], use_lora=False)
    assert client.sent[-2].endpoint in ("/update_weights_from_disk", "/areal_update_weights")
    for member, engine in world.engines.items():
        assert engine.state()["updates"] == [*before[member], 0], "once, with no request in it"
    for server in servers:
        until(lambda server=server: stands(server, client.name(1)), "it is probed and served again")
        server.answers_by(client.name(1), saved(1)[1])


def test_every_version_under_traffic(make, saved, servers):
    client = make(KEEP)

    def wrong(answer, folder):
        wanted = expected_tokens(folder, answer.prompt, len(answer.tokens))
        return "" if answer.tokens == wanted else f"{answer.tokens} and not {wanted}"

    clients = [Asking(server) for server in servers]
    for asking in clients:
        asking.__enter__()
    try:
        for version in range(ROUNDS):
            at, source = saved(version)
            client.update(version, at)
            for server in servers:
                server.current = client.name(version)
                server.answers_by(server.current, source)
    finally:
        for asking in clients:
            asking.__exit__()
    for asking in clients:
        asking.check(wrong)


def test_calls_to_all_servers_for_one_version_join(make, saved, servers, world):
    """Two of its workers ask at once, and one server is slow: one copy is loaded at each, and both are told of it."""
    client = make(KEEP)
    at, source = saved(30)
    engine = next(iter(world.engines.values()))
    listed = {member: len(engine.state()["listed"]) for member, engine in world.engines.items()}
    engine.set(load_delay_s=0.5)
    try:
        at_once(lambda _: client.run(client.disk_requests(30, at)), range(2))
    finally:
        engine.set(load_delay_s=0.0)
    for member, engine in world.engines.items():
        assert len(engine.state()["listed"]) <= listed[member] + 1
    for server in servers:
        server.answers_by(client.name(30), source)


def test_a_caller_that_gives_up_on_a_best_effort_call_leaves_nothing_behind(make, saved, servers):
    """The unload is answered at once, and happens when what runs has ended, whoever has gone meanwhile."""
    client = make(1)
    client.update(1, saved(1)[0])
    server = servers[0]
    replies = []
    long = threading.Thread(target=lambda: replies.append(server.ask(client.name(1), tokens=600)))
    long.start()
    until(lambda: server.world.metric(server.member, "lorry_door_live_requests") > 0, "it runs")
    client.ignored.clear()  # of v0, which nobody has loaded
    client.run(client.disk_requests(2, saved(2)[0]))
    assert not client.ignored and not stands(server, client.name(1))
    long.join()
    assert replies[0].tokens == expected_tokens(saved(1)[1], replies[0].prompt, 600)
    server.answers_by(client.name(2), saved(2)[1])


def test_its_names_wherever_a_request_has_them(make, saved, servers):
    client = make(KEEP)
    at, source = saved(33)
    client.update(33, at)
    name = client.name(33)
    text = text_of(expected_tokens(source, PROMPT, 6))
    for server in servers:
        door = server.world.fleet.door(server.member)

        def post(path, body, door=door):
            status, reply = http_json("POST", door + path, body)
            assert status == 200, (path, reply)
            return reply

        # SGLang reads a name alone in `model` as its base model; the door does not.
        for fields in [{"model": name}] + ([{"model": "base", "lora_path": name}] if server.kind == "sglang" else []):
            completion = post("/v1/completions", {**fields, "prompt": PROMPT, "max_tokens": 6, "temperature": 0})
            assert completion["choices"][0]["text"] == text, fields
            chat = post("/v1/chat/completions", {**fields, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6})
            assert chat["choices"][0]["message"]["content"] == text, fields
        if server.kind == "vllm":
            response = post("/v1/responses", {"model": name, "input": PROMPT, "max_output_tokens": 6})
            assert response["output"][0]["content"][0]["text"] == text
        else:
            assert post("/generate", {"lora_path": name, "text": PROMPT, "sampling_params": {"max_new_tokens": 6}})["text"] == text
        # As with a default that was never loaded (AReaL #1385).
        refused = server.ask("default_lora-v0")
        assert (refused.status, refused.reason) == (404, "UNKNOWN_ADAPTER")
        near = server.ask(client.name(34))
        assert near.status == 404 and name in near.message, "the nearest names"


def test_its_own_names_for_pauses(make, world, servers):
    client = make(KEEP)
    client.pause()
    for engine in world.engines.values():
        assert engine.state()["pauses"][-1] == "abort" and engine.state()["paused"]
    client.go_on()
    assert not any(engine.state()["paused"] for engine in world.engines.values())


