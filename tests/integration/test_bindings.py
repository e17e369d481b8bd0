"""Frameworks that know nothing of Lorry load and unload their adapters at its door: each sequence as it is documented, on engines with
every bug, under traffic; nothing hangs, and every token comes of the bytes that its name stood for."""

from __future__ import annotations

import json
import os
import pathlib
import threading

import pytest
from engine_core import expected_tokens
from testing import engines
from testing.engines import KINDS, http_json
from testing.frameworks import Asking, Framework, areal, astraflow, miles, ok, weight_versions, write
from testing.tensors import tensor_call
from testing.waiting import until
from testing.world import ADAPTER, World, restart

SLOTS = 3
ARGS = {
    "sglang": ["--max-loras-per-batch", "2", "--max-loaded-loras", str(SLOTS)],
    "vllm": ["--max-loras", "2", "--max-cpu-loras", str(SLOTS)],
}
BUGS = {"leak_on_queue_abort": True, "leak_on_n": True, "implicit_reload": True, "base_for_unknown": True}
ROUNDS = int(os.environ.get("LORRY_ROUNDS", "16"))  # of each sequence, on each kind; `make soak-frameworks` asks for 1,000
RESTART_EVERY = max(ROUNDS // 10, 8)  # more than the 64 names that a door keeps, where there are 1,000
CONTENTS = 40
JUDGED_EVERY = 20
KEEP = 4  # of AReaL: max_head_offpolicyness 2, and 2
PICKLES = pathlib.Path(__file__).parents[1] / "unit" / "engine_proxy" / "bindings" / "testdata" / "torch_pickles.json"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Where frameworks write."""
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def world(bin_dir, tiny, root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    pair = [engines.fake(k, tiny / "model", log_dir=folder, args=ARGS[k], switches=BUGS) for k in KINDS]
    with World(bin_dir, folder, *pair, proxy_flags={"bindings-root": root, "door-weight-versions": "true"}) as made:
        yield made


def wrong(answer, folder):
    """What is wrong with the answer, were it made by the bytes in `folder`; nothing, where it was."""
    wanted = expected_tokens(folder, answer.prompt, len(answer.tokens))
    return "" if answer.tokens == wanted else f"{answer.tokens} and not {wanted}"


@pytest.fixture(params=KINDS)
def framework(world, request):
    return Framework(world, request.param)


def test_a_directory_elsewhere_is_refused(framework, tiny, root):
    status, body = framework.load("elsewhere", tiny / "adapters" / "v1")
    assert status == 400 and "PATH_OUTSIDE_ROOTS" in str(body), body
    framework.load("elsewhere", root / "a\nforged: all is well")
    log = framework.world.fleet.proxies[framework.member].log_tail(1000)
    assert "forged" in log and not any(line.startswith("forged") for line in log.splitlines()), "one message, one line"
    status, body = framework.load("nothing", root / "nothing")
    assert status in (400, 404), body
    # A door that has just begun says that it does not know yet.
    until(lambda: framework.ask("nothing").reason == "UNKNOWN_ADAPTER", "the name stands for nothing")


def run(framework, steps, **asking):
    """The sequence, with clients that ask all the while; prints what it came to."""
    with Asking(framework, **asking) as clients:
        for step in steps:
            if step % JUDGED_EVERY == 0:
                clients.judge(wrong)
    clients.check(wrong)
    assert framework.world.engines[framework.member].is_running()
    print(f"{framework.kind}: {ROUNDS} repetitions, {framework.calls} calls, the slowest {framework.slowest_s:.1f} s, {clients.answers} answers")


def sources(make_adapter, first):
    """As many contents as make neighbours differ, whatever the number of repetitions."""
    return lambda step: make_adapter(first + step % CONTENTS)


def test_astraflow(framework, make_adapter, root):
    folder = root / f"astraflow-{framework.kind}"
    run(framework, astraflow(framework, sources(make_adapter, 3000), folder, ROUNDS, RESTART_EVERY))


def test_areal(framework, make_adapter, root):
    folder = root / f"areal-{framework.kind}"
    folder.mkdir()
    get = sources(make_adapter, 4000)
    run(framework, areal(framework, get, folder, ROUNDS, KEEP))
    for version in range(ROUNDS - KEEP, ROUNDS):
        framework.answers_by(f"lora-gsm8k-v{version}", get(version))  # also those that had to make room
    refused = framework.ask("lora-gsm8k-v0")
    assert refused.status == 404 and "lora-gsm8k-v" in refused.message, "the nearest names"
    status, body = framework.unload("lora-gsm8k-v0")
    assert status == (400 if framework.kind == "sglang" else 404), body
    models = http_json("GET", framework.world.fleet.door(framework.member) + "/v1/models")[1]
    assert f"lora-gsm8k-v{ROUNDS - 1}" in [card["id"] for card in models["data"]]


def test_miles(framework, make_adapter, root):
    run(framework, miles(framework, sources(make_adapter, 5000), root / f"miles-{framework.kind}", ROUNDS), gone=True)


def test_miles_from_tensors(world, make_adapter):
    framework = Framework(world, "sglang")
    run(framework, miles(framework, sources(make_adapter, 5500), None, max(ROUNDS, 20)), gone=True)


def test_tensors_in_a_call_are_what_a_directory_with_them_is(world, make_adapter, root):
    framework, folder, source = Framework(world, "sglang"), root / "as_tensors", make_adapter(5600)
    ok(framework.load_tensors(tensor_call("as_tensors", source, ranks=2)))
    digest = framework.answers_by("as_tensors", source).digest
    write(source, folder)
    status, body = framework.load("as_directory", folder)
    assert status == 200 and body["loaded_adapters"]["as_tensors"] == "__tensor__", body
    assert framework.answers_by("as_directory", source).digest == digest
    restart(world.fleet.proxies["sglang"])
    world.wait_ready("sglang")
    until(lambda: framework.ask("as_tensors").status == 200, "it is served again")
    framework.answers_by("as_tensors", source)


def test_hostile_tensors_reach_no_engine(world, make_adapter):
    """Each kills an SGLang, or has it run what the pickle says."""
    framework, source = Framework(world, "sglang"), make_adapter(5700)
    good = tensor_call("hostile", source)
    for row in json.loads(PICKLES.read_text())["refused"]:
        layout = "flattened_bucket" if row["bucket"] else None
        status, body = framework.load_tensors({**good, "serialized_named_tensors": [row["pickle"]], "load_format": layout})
        assert status == 400 and row["reason"] in body["error_message"], (row["name"], body)
    for wrong in ({"expected_checksums": {"a": "0" * 64}}, {"added_tokens_config": {"<a>": 1}}, {"serialized_named_tensors": ["?"]}, {"config_dict": None}):
        status, body = framework.load_tensors({**good, **wrong})
        assert status == 400 and not body["success"], body
    assert framework.ask("hostile").status == 404
    ok(framework.load_tensors(good))
    framework.answers_by("hostile", source)
    assert world.engines["sglang"].is_running()


def test_a_name_in_use_is_not_taken_and_in_place_takes_it(world, make_adapter, root):
    framework = Framework(world, "vllm")
    first, second = root / "first", root / "second"
    write(make_adapter(6000), first)
    write(make_adapter(6001), second)
    ok(framework.load("in_use", first))
    ok(framework.load("in_use", first))  # again, as after an answer that was lost
    replies = []
    long = threading.Thread(target=lambda: replies.append(framework.ask("in_use", tokens=1500)))
    long.start()
    until(lambda: world.metric("vllm", "lorry_door_live_requests") > 0, "it runs")
    status, body = framework.load("in_use", second)
    assert status == 400 and "already been loaded" in str(body), body
    ok(framework.load("in_use", second, load_inplace=True))
    framework.answers_by("in_use", second)
    long.join()
    assert replies[0].tokens == expected_tokens(first, replies[0].prompt, len(replies[0].tokens))


def test_figures_say_where_bound_names_stand(framework, make_adapter, root):
    def names(state):
        return framework.world.metric(framework.member, "lorry_proxy_bindings", state=state)

    def bound():
        return framework.world.metric_sum(framework.member, "lorry_proxy_bindings")

    before = bound()
    for n in range(SLOTS + 1):
        folder = root / f"figures-{framework.kind}-{n}"
        write(make_adapter(6200 + n), folder)
        ok(framework.load(f"figures-{n}", folder))
    assert bound() == before + SLOTS + 1
    until(lambda: names("loaded") == SLOTS and names("away") == before + 1, "as many as there are slots are loaded, and none leaves")
    assert framework.world.metric(framework.member, "lorry_proxy_versions_without_slot") == 0, "full as it should be"
    engine = framework.world.engines[framework.member]
    engine.set(load_error="no more of these")
    waits = threading.Thread(target=framework.ask, args=["figures-0"])
    waits.start()
    try:
        until(lambda: names("failed") == 1, "its load was refused")
    finally:
        engine.set(load_error="")
        waits.join()
    for n in range(SLOTS + 1):
        ok(framework.unload(f"figures-{n}"))
    assert bound() == before


def test_bindings_outlive_proxy_and_engine(world, make_adapter, root):
    framework = Framework(world, "sglang")
    folder = root / "kept"
    source = make_adapter(6100)
    write(source, folder)
    ok(framework.load("kept", folder))
    write(make_adapter(6101), folder)  # what the name stands for is what was there when it was loaded
    restart(world.fleet.proxies["sglang"])
    world.wait_ready("sglang")
    until(lambda: framework.ask("kept").status == 200, "it is served again")
    framework.answers_by("kept", source)
    world.engines["sglang"].kill()
    world.engines["sglang"].start()
    world.engines["sglang"].wait_ready()
    until(lambda: framework.ask("kept").status == 200, "the engine has it again")
    framework.answers_by("kept", source)


def test_miles_reads_a_version_in_the_body(world, make_adapter):
    """Last: what is published takes slots from what frameworks bound."""
    with world.open_run() as run:
        for number in (7, 8):
            world.publish(run, number, make_adapter(6300 + number))
    door = world.doors["sglang"]
    for stream in (False, True):
        assert weight_versions(door.ask(ADAPTER, stream=stream)) == {"8"}
        assert weight_versions(door.ask(f"{ADAPTER}@7", stream=stream)) == {"7"}
