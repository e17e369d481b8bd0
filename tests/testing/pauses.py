"""Engines at rest: the policies that ask for it, who is paused, and a request that runs meanwhile."""

from __future__ import annotations

import contextlib

from testing.doors import Answer
from testing.waiting import until
from testing.workers import Workers
from testing.world import ADAPTER, World

# The pauses that each kind of engine has.
PAUSES = {"sglang": ("abort", "retract", "in_place"), "vllm": ("abort", "wait", "keep")}
FLUSHING = ("abort", "wait", "keep")
MODES = ("rolling", "barrier")
SOON_S = 40.0  # of a sync that nothing holds up, on a machine that compiles beside it


def policy(mode: str, quiesce: str, **others: object) -> dict[str, object]:
    in_flight = "abort" if quiesce == "abort" else "finish_on_old"
    return {"mode": mode, "quiesce": quiesce, "in_flight": in_flight, "barrier_deadline_ms": 20_000, **others}


def paused(world: World) -> set[str]:
    """Engines that are paused now; one that starts again is not."""
    found = set()
    for member, engine in world.engines.items():
        with contextlib.suppress(OSError):
            if engine.state()["paused"]:
                found.add(member)
    return found


def pauses(world: World, member: str) -> list[str]:
    """The kinds of all that the engine was asked for."""
    return list(world.engines[member].state()["pauses"])


def row(world: World, member: str, adapter: str = ADAPTER) -> str:
    """What the member says of its row: "HELD", "LOCKED"."""
    rows = world.member(member).get("observed", {}).get("rows", [])
    return next((r["mode"].removeprefix("ROW_MODE_") for r in rows if r["adapter"] == adapter), "")


class Running(Workers):
    """A request that runs at the member's engine, a token each `token_s`, until `let_go`."""

    def __init__(
        self, world: World, member: str, name: str = ADAPTER, tokens: int = 400, token_s: float = 0.1, stream: bool = False
    ) -> None:
        self.answers: list[Answer] = []
        self._engine, self._door = world.engines[member], world.doors[member]
        self._name, self._tokens, self._stream = name, tokens, stream
        self._engine.set(token_delay_s=token_s)
        super().__init__(self._ask, join_s=60.0)

    def _ask(self) -> None:
        with contextlib.suppress(OSError):  # its proxy was killed
            self.answers.append(self._door.ask(self._name, tokens=self._tokens, stream=self._stream))

    def __enter__(self) -> Running:
        super().__enter__()
        until(lambda: self._engine.state()["running"] > 0, "it runs")
        return self

    def let_go(self) -> None:
        with contextlib.suppress(OSError):  # one that starts again has let go
            self._engine.set(token_delay_s=0.0)
