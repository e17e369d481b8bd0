"""Real SGLang and real vLLM: what becomes of requests that run when their row flips, and that nothing of them stays behind."""

from __future__ import annotations

import contextlib
import re
import threading

import pytest
from testing.doors import Answer, DoorClient
from testing.engines import KINDS
from testing.reference import Reference
from testing.waiting import until
from testing.world import ADAPTER, World

pytestmark = pytest.mark.real
TOKENS = 900  # some ten seconds; a sync takes one or two
SERVING_S = 180.0
PROMPT = [1, 40, 90, 130]
# Each pause of each engine, in one of the two modes, and whether the engine then drops its cached prefixes.
PAUSES = [
    ("sglang", "abort", "barrier", "always"),
    ("sglang", "retract", "rolling", "auto"),
    ("sglang", "in_place", "barrier", "auto"),
    ("vllm", "abort", "rolling", "always"),
    ("vllm", "wait", "barrier", "always"),
    ("vllm", "keep", "rolling", "always"),
]


@pytest.fixture(scope="module")
def reference(tiny):
    return Reference(tiny / "model", [tiny / "adapters" / f"v{n}" for n in (1, 2)])


@pytest.fixture(scope="module")
def world(bin_dir, reference, engine_pair, tmp_path_factory):
    with World(bin_dir, tmp_path_factory.mktemp("fleet"), *engine_pair.values()) as made:
        made.judge = reference.judge
        yield made


class Publisher:
    """Publishes the two adapters in turn, each time as a new version, under a policy that keeps one."""

    def __init__(self, world, run, tiny):
        self.number = 0
        self._world, self._run, self._tiny = world, run, tiny

    def folder(self, number):
        return self._tiny / "adapters" / f"v{1 + number % 2}"

    def next(self):
        self.number += 1
        self._world.publish(self._run, self.number, self.folder(self.number), timeout=SERVING_S)

    def wait_alone(self, member):
        """Until the engine has unloaded every other version: nothing holds a reference to one."""
        only = {(self._run.number, self.number)}
        until(lambda: self._world.loaded(member) == only, f"{member} keeps v{self.number} alone", SERVING_S)


@contextlib.contextmanager
def publishing(world, tiny, policy, members=KINDS):
    """A Publisher whose first version the members serve, and nothing else."""
    world.admin.set_policy(ADAPTER, {**policy, "max_staleness": 0}, replace=True)
    with world.open_run() as run:
        made = Publisher(world, run, tiny)
        made.next()
        for member in members:
            made.wait_alone(member)
        yield made


@pytest.fixture
def publisher(world, tiny, request):
    with publishing(world, tiny, {"in_flight": f"IN_FLIGHT_MODE_{request.param}"}) as made:
        yield made


class Asking:
    """One generation in a thread of its own."""

    def __init__(self, door: DoorClient, stream: bool):
        self.answer: Answer | None = None
        self._door, self._stream = door, stream
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        self.answer = self._door.ask(ADAPTER, tokens=TOKENS, prompt=PROMPT, stream=self._stream)

    def is_over(self) -> bool:
        return self.answer is not None

    def ended(self) -> Answer:
        self._thread.join(SERVING_S)
        assert self.answer is not None, "it still runs"
        return self.answer


def end_of(kind: str, answer: Answer) -> str:
    last = answer.body[-1] if isinstance(answer.body, list) else answer.body
    if kind == "sglang":
        return last["meta_info"]["finish_reason"]["type"]
    return next(c["finish_reason"] for c in reversed(last["choices"]))


@pytest.mark.parametrize("publisher", ["ABORT"], indirect=True)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_real_engine_ends_what_its_row_flips_away_from(world, publisher, kind, stream):
    old = publisher.number
    calls = [Asking(world.doors[kind], stream) for _ in range(3)]
    until(lambda: in_flight(world, kind) == 3, "they run", SERVING_S)
    publisher.next()
    for call in calls:
        answer = call.ended()
        assert (answer.status, end_of(kind, answer)) == (200, "abort"), answer.body
        assert len(answer.tokens) < TOKENS
        assert answer.version == old
        if answer.tokens:
            world.prove(answer, version=old)
    publisher.wait_alone(kind)


@pytest.mark.parametrize("publisher", ["RESUME_ON_NEW"], indirect=True)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_a_real_sglang_goes_on_under_the_new_version(world, publisher, reference, stream):
    old = publisher.number
    call = Asking(world.doors["sglang"], stream)
    until(lambda: in_flight(world, "sglang") == 1, "it runs", SERVING_S)
    publisher.next()
    answer = call.ended()
    last = answer.body[-1] if stream else answer.body
    assert end_of("sglang", answer) == "length"
    assert len(answer.tokens) == TOKENS == last["meta_info"]["completion_tokens"]
    assert last["output_ids"] == answer.tokens
    spans = last["lorry"]["spans"]
    assert [s["version"] for s in spans] == [old, publisher.number]
    assert spans[0]["start"] == 0 and spans[-1]["end"] == TOKENS
    before = []
    for span in spans:
        part = slice(span["start"], span["end"])
        tokens, logprobs = answer.tokens[part], answer.logprobs[part]
        made = Answer(200, answer.headers, None, PROMPT + before, tokens, logprobs)
        reference.judge(made, publisher.folder(span["version"]))
        before += tokens
    publisher.wait_alone("sglang")


@pytest.mark.parametrize("publisher", ["RESUME_ON_NEW"], indirect=True)
def test_a_real_vllm_finishes_what_it_cannot_resume_and_says_so(world, publisher):
    old = publisher.number
    call = Asking(world.doors["vllm"], stream=False)
    until(lambda: in_flight(world, "vllm") == 1, "it runs", SERVING_S)
    publisher.next()
    answer = call.ended()
    assert answer.headers["x-lorry-in-flight"] == "finish_on_old; only SGLang's /generate is resumed"
    assert (end_of("vllm", answer), len(answer.tokens)) == ("length", TOKENS)
    world.prove(answer, version=old)
    publisher.wait_alone("vllm")


@pytest.mark.parametrize("kind, quiesce, mode, flush", PAUSES)
def test_a_real_engine_rests_while_its_door_changes_and_goes_on(world, tiny, kind, quiesce, mode, flush):
    rule = "abort" if quiesce == "abort" else "finish_on_old"
    policy = {"mode": mode, "quiesce": quiesce, "flush": flush, "in_flight": rule, "min_engines": 1}
    with publishing(world, tiny, policy, [kind]) as publisher:
        old, before = publisher.number, said(world, kind)
        call = Asking(world.doors[kind], stream=False)
        until(lambda: in_flight(world, kind) == 1, "it runs", SERVING_S)
        publisher.next()
        assert call.is_over() or quiesce != "wait", "it was waited for"
        world.prove(world.doors[kind].ask(ADAPTER, prompt=PROMPT), version=publisher.number)
        answer = call.ended()
        assert (answer.status, end_of(kind, answer)) == (200, "abort" if quiesce == "abort" else "length")
        assert (len(answer.tokens) == TOKENS) == (quiesce != "abort")
        if answer.tokens:
            world.prove(answer, version=old)
        until(lambda: not is_paused(world, kind), "the engine goes on", SERVING_S)
        pauses, resumes = (now - then for now, then in zip(said(world, kind), before))
        assert (pauses, resumes) == (1, 1), "no pause failed, and none was in doubt"
        publisher.wait_alone(kind)


def said(world, member: str) -> tuple[int, int]:
    """How many pauses and resumes the member's engine has confirmed."""
    log = world.fleet.proxies[member].log_path.read_text()
    return log.count(" pause ok"), log.count(" resume ok")


def is_paused(world, member: str) -> bool:
    """Whether the member's proxy has not heard yet that its engine goes on."""
    return "\nlorry_proxy_engine_paused 0" not in world.fleet.proxies[member].metrics()


def in_flight(world, member: str) -> int:
    """Requests that the member's door has."""
    found = re.search(r"^lorry_door_live_requests (\d+)", world.fleet.proxies[member].metrics(), re.M)
    return int(found[1]) if found else 0
