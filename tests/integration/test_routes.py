"""Routes and forms that clients use beyond one plain completion, against the fakes, which are strict about ids and names."""

import json
import urllib.request

import pytest
from engine_core import expected_figure, expected_tokens, text_of
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


def events(world, member, path, body, last=b"[DONE]"):
    request = urllib.request.Request(
        world.fleet.door(member) + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        lines = [line[6:].strip() for line in reply.read().split(b"\n") if line.startswith(b"data: ")]
    if last is not None:
        assert lines.pop() == last
    return [json.loads(line) for line in lines]


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


def figures(tiny, prompts):
    """What the adapter answers where a model gives a figure for a text."""
    return [expected_figure(tiny / "adapters" / "v1", p) for p in prompts]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores_on_vllm_are_the_adapters(world, tiny, path):
    status, reply = post(world, "vllm", path, {"model": ADAPTER, "text_1": "a", "text_2": PROMPTS})
    assert (status, reply["model"]) == (200, ADAPTER), reply
    assert [each["score"] for each in reply["data"]] == figures(tiny, ["aone", "atwo"])


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_ranks_on_vllm_are_the_adapters(world, tiny, path):
    status, reply = post(world, "vllm", path, {"model": f"{ADAPTER}@1", "query": "a", "documents": PROMPTS})
    assert (status, reply["model"]) == (200, f"{ADAPTER}@1"), reply
    scores = {each["document"]["text"]: each["relevance_score"] for each in reply["results"]}
    assert scores == dict(zip(PROMPTS, figures(tiny, ["aone", "atwo"]), strict=True))


@pytest.mark.parametrize(("path", "figure"), [("/classify", "probs"), ("/pooling", "data")])
def test_classes_on_vllm_are_the_adapters(world, tiny, path, figure):
    status, reply = post(world, "vllm", path, {"model": ADAPTER, "input": PROMPTS})
    assert (status, reply["model"]) == (200, ADAPTER), reply
    assert [each[figure] for each in reply["data"]] == [[each] for each in figures(tiny, PROMPTS)]


@pytest.mark.parametrize("path", ["/encode", "/classify"])
def test_vectors_on_sglang_are_the_adapters(world, tiny, path):
    status, replies = post(world, "sglang", path, {"text": PROMPTS, "lora_path": ADAPTER, "rid": ["a", "b"]})
    assert status == 200, replies
    assert [each["embedding"][0] for each in replies] == figures(tiny, PROMPTS)
    assert [each["meta_info"]["id"] for each in replies] == ["a", "b"]


@pytest.mark.parametrize("stream", [False, True])
def test_responses_on_vllm_use_the_adapter(world, tiny, stream):
    body = {"model": ADAPTER, "input": "one", "max_output_tokens": 4, "stream": stream}
    if stream:
        said = events(world, "vllm", "/v1/responses", body, last=None)
        assert [event["type"] for event in said[:2]] == ["response.created", "response.in_progress"]
        assert {event["response"]["model"] for event in said if "response" in event} == {ADAPTER}
        reply = said[-1]["response"]
    else:
        status, reply = post(world, "vllm", "/v1/responses", body)
        assert (status, reply["model"]) == (200, ADAPTER), reply
    assert reply["output"][0]["content"][0]["text"] == texts(tiny, ["one"])[0]


@pytest.mark.parametrize("path", ["/v1/score", "/v1/rerank", "/v1/classify", "/v1/responses"])
def test_a_route_without_adapters_never_answers_for_one(world, path):
    status, reply = post(world, "sglang", path, {"model": ADAPTER, "input": "a"})
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
