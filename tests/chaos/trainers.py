"""Trainers: a thread an adapter that publishes without end, and waits for each version as a training loop would."""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import lorry
from adapters import Adapters
from ledger import Ledger, Published
from testing.crowd import Crowd
from testing.workers import Workers

# What a training loop allows a version to take, faults and all.
PATIENCE_S = 90.0
PAUSE_S = 0.3


@dataclass
class Wrong:
    """A version that some engines cannot bear; `on` which: all where empty."""

    how: str
    on: Sequence[str] = field(default_factory=tuple)


class Trainer(Workers):
    """Publishes to `adapter` from enter to exit."""

    def __init__(self, world: Crowd, ledger: Ledger, adapters: Adapters, adapter: str, seed: int) -> None:
        self.adapter = adapter
        self._world, self._ledger, self._adapters = world, ledger, adapters
        self._draw = random.Random(f"{seed} {adapter}")
        self._orders: queue.SimpleQueue[Wrong | Callable[[], None]] = queue.SimpleQueue()
        self._number = 0
        self._run: lorry.Run | None = None
        super().__init__(self._work, join_s=2 * PATIENCE_S, told_of=True)

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        if self._run is not None:
            self._run.close()

    def order(self, wrong: Wrong) -> None:
        """Its next version is such a one."""
        self._orders.put(wrong)

    def start_over(self) -> None:
        """Its next version begins a new run, two numbers before the last, as after a crash of the trainer."""
        self._orders.put(self._resume)

    def _resume(self) -> None:
        if self._run is not None:
            self._run.close()
        self._run = self._world.open_run(self.adapter)
        self._number = max(0, self._number - 2)

    def _work(self) -> None:
        try:
            self._resume()
            while not self._stop.is_set():
                self._step()
                self._stop.wait(self._draw.uniform(0, 2 * PAUSE_S))
        except Exception as error:  # a trainer that is gone would make the campaign look clean
            self._ledger.object(f"the trainer of {self.adapter} ended: {type(error).__name__}: {error}")

    def _step(self) -> None:
        wrong = None
        try:
            order = self._orders.get_nowait()
            if isinstance(order, Wrong):
                wrong = order
            else:
                order()
        except queue.Empty:
            pass
        self._number += 1
        folder = self._adapters.next()
        if wrong is not None:
            self._world.faults.mark(folder, wrong.how, wrong.on)
        assert self._run is not None
        version = self._run.number, self._number
        entry = self._ledger.publish(self.adapter, version, folder, wrong.how if wrong is not None else "")
        self._publish(entry)
        entry.ended = time.monotonic()

    def _publish(self, entry: Published) -> None:
        give_up_at = entry.began + PATIENCE_S
        try:
            assert self._run is not None
            handle = self._run.publish(entry.folder, version=self._number)
            handle.wait("stored", PATIENCE_S)
            entry.stored, entry.digest = time.monotonic(), handle.digest
            # Of what some engine does not bear nobody waits for more than its fate: what comes next must not wait for it.
            patience = give_up_at - time.monotonic() if not entry.wrong else 1.0
            handle.wait("serving", max(1.0, patience))
            entry.outcome = "SERVING"
        except lorry.Superseded:
            entry.outcome = "SUPERSEDED"
        except TimeoutError as error:
            entry.outcome, entry.detail = "TIMEOUT", str(error)
        except lorry.LorryError as error:
            entry.outcome, entry.detail = error.reason or error.code, str(error)
