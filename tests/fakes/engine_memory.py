"""Memory that a fake engine has released, and weights that it was given."""

from __future__ import annotations

from engine_core import BASE_DIGEST, Adapter, Switches, die

KEPT, GONE, BASE = "kept", "gone", "base"


class Memory:
    def __init__(self, switches: Switches, tags: tuple[str, ...]):
        self.switches, self.tags = switches, tags
        self.released: set[str] = set()
        self.releases: list[int] = []  # requests that were there, of each
        self.updates: list[int] = []  # likewise, of each call that changes weights

    def release(self, tags: list[str] | None, registry: dict[str, Adapter], live: int) -> None:
        self.releases.append(live)
        self.released |= set(tags or self.tags)
        if "weights" not in self.released:
            return
        if self.switches.after_sleep == BASE:
            for adapter in registry.values():
                adapter.digest = BASE_DIGEST
        elif self.switches.after_sleep == GONE:
            registry.clear()

    def take(self, tags: list[str] | None) -> None:
        self.released -= set(tags or self.tags)

    def update(self, live: int) -> None:
        self.updates.append(live)

    def must_be_there(self, *tags: str) -> None:
        """Whoever uses memory that was given away reads and writes what is another's by now."""
        if self.released & set(tags or self.tags):
            die(self.switches, "CUDA error: an illegal memory access was encountered")

    def state(self) -> dict:
        return {"released": sorted(self.released), "releases": self.releases, "updates": self.updates}
