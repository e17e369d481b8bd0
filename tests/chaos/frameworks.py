"""Frameworks that know nothing of Lorry, each at a door of its own: they bind names to directories that they write in place, under
pauses as AstraFlow does, or around a sleep of the engine as colocated trainers do, and ask by these names without end."""

from __future__ import annotations

import contextlib
import functools
import http.client
import pathlib
import random
import time
from collections.abc import Callable
from typing import Any

from adapters import Adapters
from ledger import PROMPTS, TOKENS_MAX, TOKENS_MIN, Call, Hold, Ledger, Reply
from testing.crowd import Crowd
from testing.engines import http_json
from testing.frameworks import CACHE, CALL_S, WEIGHTS, Framework, write
from testing.waiting import moment
from testing.workers import Workers

# Names count from 1 again with other bytes, as after a restart of a framework.
NAMES = 6
# One step in so many puts the engine to sleep.
SLEEP_EVERY = 3
PAUSE_S = 3.0
ASK_EVERY_S = 0.1
AGAIN_S = 0.3


class _Failed(Exception):
    """A call that got no 200; the ledger has it."""


class Colocated(Workers):
    """From enter to exit. Whatever fails, it lets the engine go on before its next step."""

    def __init__(self, world: Crowd, ledger: Ledger, adapters: Adapters, member: str, folder: pathlib.Path, seed: int) -> None:
        self._ledger, self._adapters, self._member, self._folder = ledger, adapters, member, folder
        self._framework = Framework(world, member)
        self._engine = world.engines[member]
        self._draw = random.Random(f"{seed} framework {member}")
        self._number, self._step_began = 0, 0.0
        asks = functools.partial(self._ask_on, random.Random(f"{seed} asks {member}"))
        super().__init__(self._work, asks, join_s=4 * CALL_S, told_of=True)

    def _work(self) -> None:
        while not self._stop.wait(self._draw.uniform(0, PAUSE_S)):
            self._step_began = time.monotonic()
            hold = Hold(self._member, self._step_began)
            self._ledger.holds.append(hold)
            try:
                self._step()
            except _Failed:
                self._let_go()
            hold.ended = time.monotonic()

    def _step(self) -> None:
        self._number += 1
        sleeps = self._number % SLEEP_EVERY == 0
        if sleeps:
            self._call("sleep", self._framework.release)
            self._wake(WEIGHTS)
        else:
            self._call("pause", self._framework.pause)
        self._bind(f"lora_v{1 + self._number % NAMES}")
        if sleeps:
            self._wake(CACHE)
        else:
            self._go_on()

    def _bind(self, name: str) -> None:
        source = self._adapters.next()
        bind = self._ledger.bind(self._member, name, self._number, source)
        write(source, self._folder)
        in_place = {} if self._framework.kind == "sglang" else {"load_inplace": True}
        self._call("load", lambda: self._framework.load(name, self._folder, **in_place))
        bind.done = time.monotonic()

    def _wake(self, tag: str) -> None:
        self._call("wake", lambda: self._framework.resume(tag))

    def _go_on(self) -> None:
        self._call("go on", self._framework.go_on)

    def _call(self, verb: str, ask: Callable[[], tuple[int, Any]]) -> None:
        call = Call(self._member, verb, self._step_began)
        try:
            call.status, answer = ask()
            call.detail = "" if call.status == 200 else str(answer)
        except (OSError, ValueError, http.client.HTTPException) as error:
            call.detail = f"{type(error).__name__}: {error}"
        call.received = time.monotonic()
        self._ledger.calls.append(call)
        if call.status != 200:
            raise _Failed(call.detail)

    def _let_go(self) -> None:
        """Until the engine has all of its memory and goes on; it is tried for a while also after the end."""
        self._step_began = 0.0  # what fails from here on fails of what failed before
        for call in (functools.partial(self._wake_surely, WEIGHTS), functools.partial(self._wake_surely, CACHE), self._go_on):
            end = time.monotonic() + CALL_S
            while time.monotonic() < end:
                with contextlib.suppress(_Failed):
                    call()
                    break
                moment(AGAIN_S)

    def _wake_surely(self, tag: str) -> None:
        try:
            self._wake(tag)
        except _Failed as failed:
            if "start the engine again" in str(failed):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    http_json("POST", self._engine.url + "/_fake/die", None, 5.0)
            if "is not released" not in str(failed):
                raise

    # --- its clients

    def _ask_on(self, draw: random.Random) -> None:
        while not self._stop.wait(ASK_EVERY_S):
            names = self._ledger.names_bound(self._member)
            if names:
                self._ledger.replies.append(self._ask(draw.choice(names), draw))

    def _ask(self, name: str, draw: random.Random) -> Reply:
        prompt = draw.randrange(len(PROMPTS))
        reply = Reply(self._member, "bound", self._member, name, time.monotonic())
        try:
            answer = self._framework.ask(name, tokens=draw.randint(TOKENS_MIN, TOKENS_MAX), prompt=PROMPTS[prompt],
                                         stream=draw.random() < 0.3)
            reply.reason = answer.reason
            if answer.status == 200:
                reply.digest = answer.digest
                self._ledger.judge_tokens(reply, prompt, [answer.tokens])
            reply.status = answer.status
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            reply.status, reply.reason = 0, f"{type(error).__name__}: {error}"
        reply.received = time.monotonic()
        return reply
