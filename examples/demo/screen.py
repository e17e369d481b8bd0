"""The live screen: engines × versions, the syncs' phases, rollouts a second, and what the policy has learned."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from demo.rollouts import Clients
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"


@dataclass
class Sync:
    """One published version: milliseconds of each phase, and publish → serving everywhere."""

    version: int
    upload_ms: float
    stage_ms: int
    commit_ms: int
    activate_ms: int
    total_ms: float
    engines: int


@dataclass
class Scene:
    """What the screen shows; written by the main loop alone."""

    step: str = "starting"
    rewards: list[float] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)
    status: dict = field(default_factory=dict)


class Screen:
    """Redraws a terminal four times a second; where there is none, prints a line a version."""

    def __init__(self, scene: Scene, clients: Clients | None, plain: bool) -> None:
        self.console = Console(highlight=False)
        self.clients = clients
        self._scene = scene
        self._live = None if plain or not self.console.is_terminal else Live(
            get_renderable=self._render, console=self.console, refresh_per_second=4)
        self._rates: list[tuple[float, int]] = []

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, step: str) -> None:
        """What is going on now."""
        self._scene.step = step
        if not self._live:
            self.console.print(f"  {step}")

    def published(self) -> None:
        """After each version."""
        if not self._live:
            s = self._scene.syncs[-1]
            self.console.print(f"  v{s.version}  reward {self._scene.rewards[-1]:.2f}  publish→serving {s.total_ms:.0f} ms "
                               f"(upload {s.upload_ms:.0f}, stage {s.stage_ms}, commit {s.commit_ms}, "
                               f"activate {s.activate_ms}) on {s.engines} engines, {len(self.clients.rollouts)} rollouts")

    def _render(self) -> Group:
        return Group(Panel(self._engines(), title="engines", title_align="left"),
                     Panel(self._syncs(), title="syncs, ms", title_align="left"),
                     Panel(self._training(), title="training", title_align="left"),
                     Text(f" {self._scene.step}", style="dim"))

    def _engines(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for column in ("engine", "state", "serves", "loaded", "in flight"):
            table.add_column(column, min_width=10)
        for member in self._scene.status.get("members", []):
            observed = member.get("observed", {})
            versions = {r["engine_name"]: int(r["version"].get("number", 0)) for r in observed.get("residencies", [])}
            serves = [f"v{versions.get(r.get('target', ''), '?')}" for r in observed.get("rows", []) if r.get("target")]
            loaded = sorted(int(r["version"].get("number", 0)) for r in observed.get("residencies", [])
                            if r.get("state") == "RESIDENCY_STATE_LOADED")
            flying = sum(int(r.get("in_flight", 0)) for r in observed.get("residencies", []))
            state = member["state"]
            table.add_row(member["member"], Text(state, style="green" if state == "READY" else "yellow"),
                          " ".join(serves) or "–", " ".join(f"v{v}" for v in loaded) or "–", str(flying))
        return table

    def _syncs(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for column in ("version", "upload", "stage", "commit", "activate", "publish → serving"):
            table.add_column(column, justify="right", min_width=8)
        for s in self._scene.syncs[-6:]:
            table.add_row(f"v{s.version}", f"{s.upload_ms:.0f}", str(s.stage_ms), str(s.commit_ms), str(s.activate_ms),
                          f"{s.total_ms:.0f}")
        return table

    def _training(self) -> Text:
        rewards = self._scene.rewards
        bars = "".join(BARS[min(len(BARS) - 1, int(r * len(BARS)))] for r in rewards)
        text = Text(f"reward {bars} {rewards[-1]:.2f}" if rewards else "reward –", style="bold")
        if self.clients:
            by_version = Counter(r.version for r in list(self.clients.rollouts))
            recent = "  ".join(f"v{v} {n}" for v, n in sorted(by_version.items())[-5:])
            text.append(f"\nrollouts {len(self.clients.rollouts)} ({self._rate():.1f}/s)  failed "
                        f"{len(self.clients.failures)}   by version: {recent}", style="none")
        return text

    def _rate(self) -> float:
        now = time.monotonic()
        self._rates = [*[r for r in self._rates if now - r[0] < 10], (now, len(self.clients.rollouts))]
        (t0, n0), (t1, n1) = self._rates[0], self._rates[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0
