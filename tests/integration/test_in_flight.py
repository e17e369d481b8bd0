"""Requests of `latest` that run when their door's row flips, where policy does not let them finish. On fakes a token takes
as long as a whole sync, so that what has ended was ended."""

from __future__ import annotations

import http.client
import json
import threading
from dataclasses import dataclass, field

import pytest
from testing.doors import PROMPT
from testing.engines import KINDS
from testing.waiting import DEADLINE_S, until
from testing.world import ADAPTER, Steps, expected_tokens

TOKENS = 2000
TOKEN_DELAY_S = 0.1  # all of them take longer than any deadline here


@pytest.fixture(scope="module")
def steps(world, make_adapter):
    with world.open_run() as run:
        yield Steps(world, run, make_adapter)


def follow(world, rule: str, steps) -> None:
    world.admin.set_policy(ADAPTER, {"in_flight": f"IN_FLIGHT_MODE_{rule.upper()}", "max_staleness": 0})
    for engine in world.engines.values():
        engine.set(token_delay_s=0.002)
    steps.next()
    for member in world.engines:
        until(lambda m=member: world.loaded(m) == {(steps._run.number, steps.number)}, f"{member} keeps one")


@dataclass
class Call:
    """A request at a door, in a thread of its own."""

    url: str
    path: str
    body: dict
    headers: dict = field(default_factory=dict)
    status: int = 0
    replied: dict = field(default_factory=dict)
    raw: bytes = b""

    def start(self) -> Call:
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()
        return self

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=DEADLINE_S)
        headers = {"content-type": "application/json"} | self.headers
        connection.request("POST", self.path, json.dumps(self.body), headers)
        reply = connection.getresponse()
        self.replied = {k.lower(): v for k, v in reply.getheaders()}
        self.raw = reply.read()
        self.status = reply.status
        connection.close()

    def ended(self) -> Call:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "it still runs"
        assert self.status == 200, self.raw
        return self

    @property
    def json(self):
        return json.loads(self.raw)

    @property
    def events(self) -> list[dict]:
        lines = [line[6:] for line in self.raw.decode().split("\n") if line.startswith("data: ")]
        assert lines[-1] == "[DONE]", self.raw
        return [json.loads(line) for line in lines[:-1]]


def generation(kind: str, stream: bool, **more) -> tuple[str, dict]:
    if kind == "sglang":
        params = {"max_new_tokens": TOKENS, **more}
        return "/generate", {"lora_path": ADAPTER, "input_ids": PROMPT, "sampling_params": params, "stream": stream}
    return "/v1/completions", {
        "model": ADAPTER, "prompt": PROMPT, "max_tokens": TOKENS, "return_token_ids": True, "stream": stream, **more
    }  # fmt: skip


def sequences(kind: str, call: Call, stream: bool) -> list[tuple[list[int], str]]:
    """Tokens of each, and how it ended."""
    if kind == "sglang":
        last = call.events[-1] if stream else call.json
        each = last if isinstance(last, list) else [last]
        return [(one["output_ids"], one["meta_info"]["finish_reason"]["type"]) for one in each]
    choices = [c for e in call.events for c in e["choices"]] if stream else call.json["choices"]
    if stream:
        return [([t for c in choices for t in c["token_ids"]], choices[-1]["finish_reason"])]
    return [(c["token_ids"], c["finish_reason"]) for c in choices]


def flip(world, steps, calls: list[Call], running: int, members=KINDS) -> None:
    """Publishes while the engines have `running` requests, each with some tokens."""
    for call in calls:
        call.start()
    for member in members:
        until(lambda m=member: world.engines[m].state()["running"] == running, f"{member} runs them")
    for member in members:
        world.engines[member].set(token_delay_s=TOKEN_DELAY_S)
    steps.next()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_a_running_request_ends_as_the_engine_aborts_it(world, steps, make_adapter, kind, stream):
    follow(world, "abort", steps)
    old = steps.number
    call = Call(world.fleet.door(kind), *generation(kind, stream), {"x-lorry-body": "1"})
    flip(world, steps, [call], 1, [kind])
    [(tokens, ended)] = sequences(kind, call.ended(), stream)
    assert ended == "abort"
    assert tokens == expected_tokens(make_adapter(old), PROMPT, len(tokens))
    assert call.replied["x-lorry-version"] == str(old)
    last = next(e for e in reversed(call.events) if "lorry" in e) if stream else call.json
    assert last["lorry"]["version"] == old
    until(lambda: world.loaded(kind) == {(steps._run.number, steps.number)}, "the old version left at once")


@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_of_every_prompt_is_aborted(world, steps, make_adapter, kind):
    follow(world, "abort", steps)
    old = steps.number
    path, body = generation(kind, False, n=2)
    prompts = [PROMPT, [9, 9]]
    body["input_ids" if kind == "sglang" else "prompt"] = prompts
    call = Call(world.fleet.door(kind), path, body)
    flip(world, steps, [call], 4, [kind])
    told = sequences(kind, call.ended(), False)
    assert [end for _, end in told] == ["abort"] * 4
    for i, (tokens, _) in enumerate(told):
        assert tokens == expected_tokens(make_adapter(old), prompts[i // 2], len(tokens))


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_is_aborted_and_a_named_version_is_not(world, steps, kind):
    follow(world, "abort", steps)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": TOKENS}
    door = world.fleet.door(kind)
    chat = Call(door, "/v1/chat/completions", body | {"model": ADAPTER})
    named = Call(door, "/v1/chat/completions", body | {"model": f"{ADAPTER}@{steps.number}", "max_tokens": 40})
    flip(world, steps, [chat, named], 2, [kind])
    assert chat.ended().json["choices"][0]["finish_reason"] == "abort"
    assert named.ended().json["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_a_resumed_request_tells_which_version_made_which_tokens(world, steps, make_adapter, stream):
    follow(world, "resume_on_new", steps)
    first = steps.number
    path, body = generation("sglang", stream)
    body["sampling_params"]["max_new_tokens"] = 120
    body["return_logprob"] = True
    call = Call(world.fleet.door("sglang"), path, body)
    flip(world, steps, [call], 1, ["sglang"])
    world.engines["sglang"].set(token_delay_s=0.002)
    call.ended()
    last = call.events[-1] if stream else call.json
    tokens, spans = last["output_ids"], last["lorry"]["spans"]
    assert len(tokens) == 120 == last["meta_info"]["completion_tokens"]
    assert [e[1] for e in last["meta_info"]["output_token_logprobs"]] == tokens
    assert last["meta_info"]["prompt_tokens"] == len(PROMPT)
    assert [s["version"] for s in spans] == [first, first + 1]
    assert (spans[0]["start"], spans[0]["end"], spans[1]["end"]) == (0, spans[1]["start"], 120)
    cut = spans[0]["end"]
    assert tokens[:cut] == expected_tokens(make_adapter(first), PROMPT, cut)
    assert tokens[cut:] == expected_tokens(make_adapter(first + 1), PROMPT + tokens[:cut], 120 - cut)
    if not stream:
        assert call.replied["x-lorry-version"] == f"{first}, {first + 1}"


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_resumed_finishes_on_the_version_it_began_with(world, steps, kind):
    follow(world, "resume_on_new", steps)
    old = steps.number
    path, body = generation(kind, False, stop=["never"])
    (body["sampling_params"] if kind == "sglang" else body)["max_new_tokens" if kind == "sglang" else "max_tokens"] = 30
    call = Call(world.fleet.door(kind), path, body)
    flip(world, steps, [call], 1, [kind])
    [(tokens, ended)] = sequences(kind, call.ended(), False)
    assert (len(tokens), ended) == (30, "length")
    assert call.replied["x-lorry-version"] == str(old)
    assert call.replied["x-lorry-in-flight"].startswith("finish_on_old; ")
