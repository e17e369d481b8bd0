"""What keeps an adapter on an engine and what does not: samples, batches, clients that call the engine themselves, and
requests of a proxy that is gone. Engines have three slots, one more than is kept: publishing stops as soon as a name that
nobody needs stays."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request

import pytest
from testing import engines
from testing.doors import PROMPT
from testing.engine_api import EngineApi
from testing.engines import KINDS
from testing.waiting import DEADLINE_S, until
from testing.workers import Workers
from testing.world import ADAPTER, Steps, World, restart

SLOTS = {"sglang": ["--max-loaded-loras", "3"], "vllm": ["--max-cpu-loras", "3"]}
PUBLISHES = 30
# The fake SGLang, as the real one, counts a request from its 15th token on.
TOKENS = 24


@pytest.fixture
def small(bin_dir, tiny, tmp_path):
    pair = [engines.fake(kind, tiny / "model", args=SLOTS[kind], log_dir=tmp_path) for kind in KINDS]
    with World(bin_dir, tmp_path, *pair) as made:
        yield made


@pytest.fixture
def steps(small, make_adapter):
    with small.open_run() as run:
        made = Steps(small, run, make_adapter)
        made.next()
        yield made


def wide(kind: str, name: str | None, prompts: int, n: int) -> tuple[str, dict]:
    """A request of prompts × n samples."""
    if kind == "sglang":
        body = {"input_ids": [PROMPT] * prompts, "sampling_params": {"max_new_tokens": TOKENS, "n": n}}
        return "/generate", body | ({"lora_path": name} if name else {})
    return "/v1/completions", {"model": name or "base", "prompt": [PROMPT] * prompts, "max_tokens": TOKENS, "n": n}


class Clients(Workers):
    """Threads that post one body over and over, from enter to exit; a connection that breaks is tried again."""

    def __init__(self, url: str, path: str, body: dict, count: int) -> None:
        self.answered = 0
        self.refused: list[str] = []
        self._call = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        super().__init__(*[self._work] * count, join_s=DEADLINE_S)

    def __enter__(self) -> Clients:
        super().__enter__()
        until(lambda: self.answered or self.refused, "the first answer")
        return self

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                with urllib.request.urlopen(self._call, timeout=DEADLINE_S) as reply:
                    reply.read()
                self.answered += 1
            except urllib.error.HTTPError as error:
                self.refused.append(f"{error.code} {error.read().decode(errors='replace')}")
            except OSError:
                self._stop.wait(0.05)


@contextlib.contextmanager
def busy_doors(world: World, prompts: int, n: int, count: int):
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(Clients(door_url(world, k), *wide(k, ADAPTER, prompts, n), count)) for k in KINDS
        ]


def door_url(world: World, member: str) -> str:
    return world.fleet.door(member)


@pytest.mark.parametrize(("prompts", "n"), [(1, 8), (4, 2)], ids=["n=8", "batches"])
def test_publishing_goes_on_under_requests_of_many_samples(small, steps, prompts, n):
    with busy_doors(small, prompts, n, count=6) as doors:
        for _ in range(PUBLISHES):
            steps.next()
    assert all(door.answered and not door.refused for door in doors), [door.refused[:3] for door in doors]
    small.wait_serves(steps.number)


def test_publishing_goes_on_while_others_call_the_engines(small, steps):
    """Whoever calls an engine under no lease keeps no name on it."""
    with contextlib.ExitStack() as stack:
        direct = [
            stack.enter_context(Clients(small.engines[k].url, *wide(k, None, 1, 4), count=3)) for k in KINDS
        ]
        for _ in range(6):
            steps.next()
    assert all(client.answered and not client.refused for client in direct)


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_was_leased_stays_while_its_holder_still_uses_it(small, steps, kind):
    engine, leased = EngineApi(small.engines[kind]), small.admin.lease(ADAPTER, "direct", ttl_s=600)
    name = leased.engine_names[kind.upper()]
    until(lambda: name in engine.listed(), "it is loaded")
    small.engines[kind].set(token_delay_s=0.05)
    stream = engine.stream(name, tokens=600)
    stream.wait_for(20)
    assert small.admin.release(ADAPTER, "direct") == 1
    for _ in range(3):  # out of the window
        steps.next("stored")
    until(lambda: small.member(kind)["observed"]["residencies"], "reported")
    until(lambda: steps.number == small.latest()[1], "decided by what has room")
    assert name in engine.listed()
    assert not stream.ended
    stream.leave()
    until(lambda: name not in engine.listed(), "its holder has left")


def test_publishing_goes_on_after_a_restart_of_the_proxies_under_load(small, steps):
    with busy_doors(small, prompts=1, n=8, count=12):
        for _ in range(2):
            steps.next()
        restart(*small.fleet.proxies.values())
        for _ in range(4):
            steps.next()
    small.wait_serves(steps.number)
