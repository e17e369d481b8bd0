"""What is asked of the fleet itself while the campaign runs: does it say why, does it blame the innocent, does it grow?"""

from __future__ import annotations

import time
from typing import Any

import lorry
from ledger import Ledger, Version
from testing.crowd import Crowd
from testing.processes import footprint
from testing.workers import Workers

POLL_S = 1.0
# A look asks each service once, and each call has its own deadline.
JOIN_S = 60.0
# The orchestrator hears of a stored version by the store's watch, and of the store's return by its backoff.
HEARD_WITHIN_S = 5.0
# Of a process that has found its size; what it may gain from then on, whatever the campaign's length.
WARM_AFTER_S = 40.0
GROWTH_BYTES_MAX = 48 << 20
GROWTH_FDS_MAX = 64


class Watch(Workers):
    """A thread that looks once a second, from enter to exit."""

    def __init__(self, world: Crowd, ledger: Ledger) -> None:
        self._world, self._ledger = world, ledger
        self._silent: dict[str, tuple[float, Version]] = {}  # adapter -> since when no reason is given, for which version
        self._sizes: dict[int, list[tuple[float, int, int, str]]] = {}  # pid -> (age, bytes, descriptors, label)
        self._blamed: set[tuple[str, Version]] = set()
        super().__init__(self._work, join_s=JOIN_S, told_of=True)

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        for sizes in self._sizes.values():
            self._judge_growth(sizes)

    def _work(self) -> None:
        began: dict[int, float] = {}
        while not self._stop.wait(POLL_S):
            for service in self._world.fleet.services():
                if service.is_running():
                    born = began.setdefault(service.pid, time.monotonic())
                    self._measure(service.pid, time.monotonic() - born, service.label)
            try:
                status = self._world.admin.status()
            except lorry.LorryError:
                self._silent.clear()  # nobody was there to say anything
                continue
            for pool in status.get("pools", []):
                self._ask_why(pool)
                self._ask_whom_it_blames(pool)

    def _ask_why(self, pool: dict[str, Any]) -> None:
        now, adapter = time.monotonic(), str(pool["adapter"])
        stored = [p.version for p in self._ledger.all_published()
                  if p.adapter == adapter and 0 < p.stored < now - HEARD_WITHIN_S]
        newest, running = max(stored, default=(0, 0)), pool.get("running", {})
        says_why = running.get("reason") or "STAGING" in running.get("state", "") or "override" in pool
        if _version(pool.get("latest", {})) >= newest or says_why:
            self._silent.pop(adapter, None)
            return
        since, of = self._silent.setdefault(adapter, (now, newest))
        if of != newest:
            self._silent[adapter] = now, newest
        elif since and now - since > HEARD_WITHIN_S:
            self._ledger.object(f"status does not say why {adapter} {newest} is not latest: {running}")
            self._silent[adapter] = 0.0, newest

    def _ask_whom_it_blames(self, pool: dict[str, Any]) -> None:
        for ref in pool.get("poisoned", []):
            key = str(pool["adapter"]), _version(ref)
            published = self._ledger.published.get(key)
            if (published is None or not published.wrong) and key not in self._blamed:
                self._blamed.add(key)
                self._ledger.object(f"{key[0]} {key[1]} is good and POISONED")

    def _measure(self, pid: int, age: float, label: str) -> None:
        try:
            memory, fds = footprint(pid)
        except OSError:
            return  # it has just ended
        if memory:
            self._sizes.setdefault(pid, []).append((age, memory, fds, label))

    def _judge_growth(self, sizes: list[tuple[float, int, int, str]]) -> None:
        warm = [s for s in sizes if s[0] > WARM_AFTER_S]
        if len(warm) < 2:
            return
        tail = warm[-len(warm) // 3 :]
        first, last = warm[0], (min(s[1] for s in tail), min(s[2] for s in tail))
        if last[0] - first[1] > GROWTH_BYTES_MAX:
            self._ledger.object(f"{first[3]} grew from {first[1] >> 20} to {last[0] >> 20} MiB")
        if last[1] - first[2] > GROWTH_FDS_MAX:
            self._ledger.object(f"{first[3]} grew from {first[2]} to {last[1]} descriptors")


def _version(ref: dict[str, Any]) -> Version:
    return int(ref.get("run", 0)), int(ref.get("number", 0))
