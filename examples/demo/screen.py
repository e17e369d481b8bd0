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
# A status older than this is said to be old: four times what passes between two of them.
OLD_S = 2.0


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
    """What the screen shows. The watcher writes the last four, the main loop the rest; fields are replaced whole."""

    step: str = "starting"
    rewards: list[float] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)
    status: dict = field(default_factory=dict)
    seen_at: float = 0.0  # when the status came, by the monotonic clock; 0: never
    trouble: str = ""  # why the last question had no answer
    gaps: dict[int, float] = field(default_factory=dict)  # version → the engines' largest mean gap to the trainer, nats

    def saw(self, status: dict, now: float) -> None:
        self.status, self.seen_at, self.trouble = status, now, ""
        self.gaps = {**self.gaps, **gaps_of(status)}


class Screen:
    """Redraws a terminal four times a second; where there is none, prints a line a version."""

    def __init__(self, scene: Scene, clients: Clients | None, plain: bool) -> None:
        self.console = Console(highlight=False)
        self.clients = clients
        self._scene = scene
        self._live = None if plain or not self.console.is_terminal else Live(
            get_renderable=self._render, console=self.console, refresh_per_second=4)
        self._rates: list[tuple[float, int]] = []
        self._step_began = time.monotonic()

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, step: str) -> None:
        """What is going on now."""
        self._scene.step, self._step_began = step, time.monotonic()
        if not self._live:
            self.console.print(f"  {step}")

    def published(self) -> None:
        """After each version."""
        if not self._live:
            s = self._scene.syncs[-1]
            self.console.print(f"  v{s.version}  reward {self._scene.rewards[-1]:.2f}  publish→serving {s.total_ms:.0f} ms "
                               f"(upload {s.upload_ms:.0f}, stage {s.stage_ms}, commit {s.commit_ms}, "
                               f"activate {s.activate_ms}) on {s.engines} engines, gap {self._gap(s.version)}, "
                               f"{len(self.clients.rollouts)} rollouts")

    def _render(self) -> Group:
        return Group(Panel(self._engines(), title="engines", title_align="left"),
                     Panel(self._syncs(), title="syncs, ms", title_align="left"),
                     Panel(self._training(), title="training", title_align="left"),
                     Text(f" {time.monotonic() - self._step_began:.0f} s  {self._scene.step}", style="dim"))

    def _engines(self) -> Group:
        table = Table(box=None, pad_edge=False)
        for column, width in (("engine", 6), ("state", 8), ("serves", 6), ("loaded", 12), ("on the way", 20), ("in flight", 14)):
            table.add_column(column, min_width=width)
        for member in self._scene.status.get("members", []):
            observed = member.get("observed", {})
            residencies = sorted(observed.get("residencies", []), key=number)
            versions = {r["engine_name"]: number(r) for r in residencies}
            serves = [f"v{versions.get(r.get('target', ''), '?')}" for r in observed.get("rows", []) if r.get("target")]
            loaded = [f"v{number(r)}" for r in residencies if state(r) == "LOADED"]
            moving = [f"v{number(r)} {progress(r)}" for r in residencies if state(r) != "LOADED"]
            flying = [f"v{number(r)}: {r['in_flight']}" for r in residencies if int(r.get("in_flight", 0))]
            table.add_row(member["member"], Text(member["state"], style="green" if member["state"] == "READY" else "yellow"),
                          " ".join(serves) or "–", " ".join(loaded) or "–", Text(", ".join(moving) or "–", style="cyan"),
                          " ".join(flying) or "–")
        return Group(table, self._news())

    def _news(self) -> Text:
        """Empty while the orchestrator answers."""
        age_s = time.monotonic() - self._scene.seen_at
        if not self._scene.seen_at or age_s < OLD_S:
            return Text("")
        return Text(f"the orchestrator was heard {age_s:.0f} s ago {self._scene.trouble}", style="yellow")

    def _syncs(self) -> Group:
        table = Table(box=None, pad_edge=False)
        for column in ("version", "upload", "stage", "commit", "activate", "publish → serving", "gap to trainer"):
            table.add_column(column, justify="right", min_width=8)
        for s in self._scene.syncs[-6:]:
            table.add_row(f"v{s.version}", f"{s.upload_ms:.0f}", str(s.stage_ms), str(s.commit_ms), str(s.activate_ms),
                          f"{s.total_ms:.0f}", self._gap(s.version))
        return Group(table, Text(f"now: {running(self._scene.status)}", style="cyan"))

    def _gap(self, version: int) -> str:
        return f"{self._scene.gaps[version]:.1e}" if version in self._scene.gaps else "–"

    def _training(self) -> Text:
        rewards = self._scene.rewards
        bars = "".join(BARS[min(len(BARS) - 1, int(r * len(BARS)))] for r in rewards)
        text = Text(f"reward {bars} {rewards[-1]:.2f}" if rewards else "reward –", style="bold")
        if self.clients:
            by_version = Counter(r.version for r in list(self.clients.rollouts))
            recent = "  ".join(f"v{v} {n}" for v, n in sorted(by_version.items())[-5:])
            text.append(f"\nrollouts {len(self.clients.rollouts)} ({self._rate():.1f}/s)  failed "
                        f"{len(self.clients.failures)}\nby version: {recent}", style="none")
        return text

    def _rate(self) -> float:
        now = time.monotonic()
        self._rates = [*[r for r in self._rates if now - r[0] < 10], (now, len(self.clients.rollouts))]
        (t0, n0), (t1, n1) = self._rates[0], self._rates[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0


def number(residency: dict) -> int:
    return int(residency["version"].get("number", 0))


def gaps_of(status: dict) -> dict[int, float]:
    """Version → the largest of the engines' mean gaps, of those that are loaded."""
    gaps: dict[int, float] = {}
    for member in status.get("members", []):
        for residency in member.get("observed", {}).get("residencies", []):
            if "gap" in residency:
                mean = int(residency["gap"].get("mean_ppm", 0)) / 1e6
                gaps[number(residency)] = max(gaps.get(number(residency), 0.0), mean)
    return gaps


def state(residency: dict) -> str:
    return residency.get("state", "").removeprefix("RESIDENCY_STATE_")


def progress(residency: dict) -> str:
    """"fetching 40 %", "loading", "failed ENGINE_REFUSED"."""
    text = state(residency).lower() or "wanted"
    done, total = int(residency.get("bytes_done", 0)), int(residency.get("bytes_total", 0))
    if text == "fetching" and total:
        return f"{text} {100 * done // total} %"
    return f"{text} {residency.get('reason', '')}".rstrip()


def running(status: dict) -> str:
    """The sync that runs or waits, with its phase; after a decision, whose door does not serve it yet."""
    for pool in status.get("pools", []):
        if "running" in pool:
            about, now = int(pool["running_version"].get("number", 0)), pool["running"]
            phase = now.get("state", "").removeprefix("SYNC_STATE_").lower()
            parts = [f"{m['member']} {member_state(m)}" for m in now.get("progress", [])]
            why = " ".join(x for x in (now.get("reason", ""), now.get("detail", "")) if x)
            return f"v{about} {phase}  {', '.join(parts)}  {why}".rstrip()
        latest = int(pool.get("latest", {}).get("number", 0))
        behind = [m["member"] for m in status.get("members", []) if m["state"] == "READY" and latest not in served(m)]
        if behind and "latest" in pool:
            return f"v{latest} decided, not served yet by {', '.join(behind)}"
    return "no sync runs"


def served(member: dict) -> set[int]:
    """Versions that the member's door announces as latest."""
    observed = member.get("observed", {})
    numbers = {r["engine_name"]: number(r) for r in observed.get("residencies", [])}
    return {numbers[r["target"]] for r in observed.get("rows", []) if r.get("target") in numbers}


def member_state(part: dict) -> str:
    if part.get("dropped"):
        return f"dropped: {part['dropped']}"
    return progress(part)
