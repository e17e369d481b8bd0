"""Routes and forms that clients use beyond one plain completion, against the fakes, which are strict about ids and names."""

import json
import urllib.request

import pytest
from engine_core import expected_tokens, text_of
from testing.engines import KINDS, http_json
from testing.world import ADAPTER

PROMPTS = ["one", "two"]


@pytest.fixture(scope="module", autouse=True)
def run(world, tiny):
    with world.open_run() as run:
        world.publish(run, 1, tiny / "adapters" / "v1")
        yield run


def texts(tiny, prompts, tokens=4):
    return [text_of(expected_tokens(tiny / "adapters" / "v1", p, tokens)) for p in prompts]


def post(world, member, path, body):
    return http_json("POST", world.fleet.door(member) + path, body)


def events(world, member, path, body):
    request = urllib.request.Request(
        world.fleet.door(member) + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        lines = [line[6:].strip() for line in reply.read().split(b"\n") if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("stream", [False, True])
def test_samples_of_one_prompt_on_sglang(world, tiny, stream):
    body = {"text": "one", "lora_path": ADAPTER, "rid": "mine", "sampling_params": {"n": 3, "max_new_tokens": 4}}
    if not stream:
        status, replies = post(world, "sglang", "/generate", body)
        assert status == 200, replies
        assert [r["text"] for r in replies] == texts(tiny, ["one"] * 3)
    else:
        replies = events(world, "sglang", "/generate", body | {"stream": True})
        last = {event["index"]: event["text"] for event in replies}
        assert last == dict(enumerate(texts(tiny, ["one"] * 3)))
    assert {r["meta_info"]["id"] for r in replies} == {"mine"}


def test_samples_of_a_batch_on_sglang(world, tiny):
    params = {"n": 2, "max_new_tokens": 4}
    body = {"text": PROMPTS, "lora_path": [ADAPTER, f"{ADAPTER}@1"], "rid": "b", "sampling_params": params}
    status, replies = post(world, "sglang", "/generate", body)
    assert status == 200, replies
    assert [r["text"] for r in replies] == texts(tiny, ["one", "one", "two", "two"])
    assert [r["meta_info"]["id"] for r in replies] == ["b_0", "b_0", "b_1", "b_1"]


@pytest.mark.parametrize("member", KINDS)
def test_a_reply_calls_its_model_what_the_client_called_it(world, member):
    body = {"model": f"{ADAPTER}@1", "prompt": "one", "max_tokens": 2}
    status, reply = post(world, member, "/v1/completions", body)
    assert (status, reply["model"]) == (200, f"{ADAPTER}@1")
    streamed = events(world, member, "/v1/completions", body | {"stream": True})
    assert {event["model"] for event in streamed} == {f"{ADAPTER}@1"}


@pytest.mark.parametrize("member", KINDS)
def test_embeddings_and_messages_use_the_adapter(world, tiny, member):
    status, reply = post(world, member, "/v1/embeddings", {"model": ADAPTER, "input": PROMPTS})
    assert (status, reply["model"], len(reply["data"])) == (200, ADAPTER, 2), reply
    body = {"model": ADAPTER, "max_tokens": 4, "messages": [{"role": "user", "content": "one"}]}
    status, reply = post(world, member, "/v1/messages", body)
    assert (status, reply["model"]) == (200, ADAPTER), reply
    assert reply["content"][0]["text"] == texts(tiny, ["one"])[0]


def test_a_route_without_adapters_never_answers_for_one(world):
    status, reply = post(world, "sglang", "/v1/score", {"model": ADAPTER, "query": "a", "items": ["b"]})
    assert (status, reply["type"]) == (403, "ROUTE_REFUSED")


@pytest.mark.parametrize("member", KINDS)
def test_one_model_is_a_card_or_nothing(world, member):
    door = world.fleet.door(member)
    status, listed = http_json("GET", door + "/v1/models")
    assert status == 200 and listed["data"][0]["id"] == ADAPTER
    assert http_json("GET", f"{door}/v1/models/{ADAPTER}@1")[1]["id"] == f"{ADAPTER}@1"
    assert http_json("GET", f"{door}/v1/models/polcy")[0] == 404


def test_trainers_may_ask_vllm_for_its_world_size(world):
    assert http_json("GET", world.fleet.door("vllm") + "/get_world_size") == (200, {"world_size": 1})
