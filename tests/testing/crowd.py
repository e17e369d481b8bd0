"""A World of several engines of each kind, which a supervisor starts again whenever they end, and whose faults are planned.

    with Crowd(bin_dir, folder, model, "sglang-1", "sglang-2", "vllm-1") as world:
        world.faults.mark(adapter_dir, DIE_AT_LOAD)
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

from testing import engines
from testing.faults import Faults
from testing.forwarder import Forwarder
from testing.world import World

PAIRS = ("sglang-1", "sglang-2", "vllm-1", "vllm-2")


class Crowd(World):
    """`members` begin with their kind. `switches` of all fakes, beside their faults; `args` of each kind.
    `wires[member]` is its proxy's way to the orchestrator."""

    def __init__(
        self,
        bin_dir: os.PathLike[str],
        folder: pathlib.Path,
        model: pathlib.Path,
        *members: str,
        switches: Mapping[str, object] | None = None,
        args: Mapping[str, list[str]] | None = None,
        **world: Any,
    ) -> None:
        self.faults = Faults(folder, *members)
        made = []
        for member in members:
            kind = member.partition("-")[0]
            own = {**(switches or {}), **self.faults.switches(member)}
            made.append(engines.fake(kind, model, log_dir=folder / "engines", name=member, switches=own, respawn=True,
                                     args=(args or {}).get(kind, ())))
        super().__init__(bin_dir, folder, *made, **world)
        self.wires = {m: Forwarder(self.fleet.addresses()["orchestrator"]) for m in members}
        for member, wire in self.wires.items():
            self.fleet.proxies[member].flags["orchestrator"] = wire.address

    def close(self) -> None:
        super().close()
        for wire in self.wires.values():
            wire.close()

    def of_kind(self, kind: str) -> list[str]:
        return [m for m in self.engines if self.engines[m].kind == kind]

    def deaths_of(self, kind: str, adapter_dir: pathlib.Path) -> int:
        """Engines of the kind that died of the version."""
        return sum(self.faults.deaths(adapter_dir, m) for m in self.of_kind(kind))
