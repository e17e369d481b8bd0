"""Rollout clients: a thread a door that asks without end, in every way, and writes down who answered."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from typing import Any

from ledger import PROMPTS, TOKENS_MAX, TOKENS_MIN, Ledger, Reply
from testing.doors import DEADLINE_S, DoorClient

ALIAS = "eval"
KINDS = ("latest", "latest", "stream", "many", "explicit", "alias")
CHOICES = 3
# Between two requests of a client: enough to see every flip, and CPU left for the fleet.
PAUSE_S = 0.04


class Clients:
    """From enter to exit. `doors`: member -> its door, which may be replaced by one of another address."""

    def __init__(self, ledger: Ledger, doors: dict[str, DoorClient], adapters: list[str], seed: int) -> None:
        self._ledger, self._doors, self._adapters = ledger, doors, adapters
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(door, random.Random(f"{seed} {door}")), daemon=True)
            for door in doors
        ]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def _work(self, door: str, draw: random.Random) -> None:
        turn = draw.randrange(len(KINDS))
        while not self._stop.is_set():
            turn += 1
            self._ledger.replies.append(self._ask(door, KINDS[turn % len(KINDS)], draw))
            self._stop.wait(PAUSE_S)

    def _ask(self, door: str, kind: str, draw: random.Random) -> Reply:
        adapter = draw.choice(self._adapters)
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
            status, headers, choices = _many(client, reply.asked, tokens, PROMPTS[prompt])
        else:
            answer = client.ask(reply.asked, tokens=tokens, prompt=PROMPTS[prompt], stream=reply.kind == "stream")
            status, headers, choices = answer.status, answer.headers, [answer.tokens]
        reply.reason = headers.get("x-lorry-reason", "")
        if status == 200:
            reply.announced = int(headers["x-lorry-run"]), int(headers["x-lorry-version"])
            reply.epoch = int(headers.get("x-lorry-epoch", 0))
            reply.sources = [self._ledger.source_of(reply.adapter, prompt, c) for c in choices]
            if any(self._ledger.is_base(prompt, c) for c in choices):
                reply.reason = "BASE"
        reply.status = status


def _many(client: DoorClient, name: str, tokens: int, prompt: list[int]) -> tuple[int, dict[str, str], list[list[int]]]:
    """n > 1, in the engine's own words: status, headers, and the tokens of each choice."""
    path, body = client._request(name, tokens, prompt, stream=False)
    if client.kind == "sglang":
        body["sampling_params"]["n"] = CHOICES
    else:
        body["n"] = CHOICES
    connection = http.client.HTTPConnection(*client._at, timeout=DEADLINE_S)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        raw = answer.read()
    finally:
        connection.close()
    headers = {k.lower(): v for k, v in answer.getheaders()}
    if answer.status != 200:
        return answer.status, headers, []
    replies: Any = json.loads(raw)
    if client.kind == "sglang":
        return 200, headers, [client._generated(one)[0] for one in replies]
    return 200, headers, [choice["token_ids"] for choice in replies["choices"]]
