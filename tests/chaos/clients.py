"""Rollout clients: a thread a door that asks without end, in every way, and writes down who answered."""

from __future__ import annotations

import functools
import http.client
import random
import time

from ledger import PROMPTS, TOKENS_MAX, TOKENS_MIN, Ledger, Reply
from testing.doors import DEADLINE_S, DoorClient
from testing.workers import Workers

ALIAS = "eval"
KINDS = ("latest", "latest", "stream", "many", "explicit", "alias")
SAMPLES = 3
# Between two requests of a client: enough to see every flip, and CPU left for the fleet.
PAUSE_S = 0.04


class Clients(Workers):
    """From enter to exit. `doors`: member -> its door, which may be replaced by one of another address."""

    def __init__(self, ledger: Ledger, doors: dict[str, DoorClient], adapters: list[str], seed: int) -> None:
        self._ledger, self._doors, self._adapters = ledger, doors, adapters
        work = [functools.partial(self._work, door, random.Random(f"{seed} {door}")) for door in doors]
        super().__init__(*work, join_s=DEADLINE_S + 60.0, told_of=True)

    def _work(self, door: str, draw: random.Random) -> None:
        turn = draw.randrange(len(KINDS))
        while not self._stop.is_set():
            turn += 1
            # In turns, so that each adapter's latest is asked for in each round of kinds.
            adapter = self._adapters[(turn + turn // len(KINDS)) % len(self._adapters)]
            self._ledger.replies.append(self._ask(door, KINDS[turn % len(KINDS)], adapter, draw))
            self._stop.wait(PAUSE_S)

    def _ask(self, door: str, kind: str, adapter: str, draw: random.Random) -> Reply:
        asked, prompt = adapter, draw.randrange(len(PROMPTS))
        if kind == "explicit":
            newest = self._ledger.newest_good(adapter, time.monotonic())
            asked = f"{adapter}@{max(0, newest[1] - draw.randrange(3))}"
        if kind == "alias":
            asked = f"{adapter}@{ALIAS}"
        reply = Reply(door, kind, adapter, asked, time.monotonic())
        try:
            self._send(reply, prompt, draw.randint(TOKENS_MIN, TOKENS_MAX))
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            reply.status, reply.reason = 0, f"{type(error).__name__}: {error}"
        reply.received = time.monotonic()
        return reply

    def _send(self, reply: Reply, prompt: int, tokens: int) -> None:
        client = self._doors[reply.door]
        if reply.kind == "many":
            answer = client.ask_samples(reply.asked, SAMPLES, tokens=tokens, prompt=PROMPTS[prompt])
            choices = answer.samples
        else:
            answer = client.ask(reply.asked, tokens=tokens, prompt=PROMPTS[prompt], stream=reply.kind == "stream")
            choices = [answer.tokens]
        reply.reason = answer.reason
        if answer.status == 200:
            reply.announced = answer.run, answer.version
            reply.epoch = int(answer.headers.get("x-lorry-epoch", 0))
            self._ledger.judge_tokens(reply, prompt, choices)
        reply.status = answer.status
