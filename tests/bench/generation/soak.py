"""usage: soak.py BIN_DIR [--engines real] [--kind vllm] [--seconds 600]: does anything grow when one engine is synced thousands of times?

Publishes version after version to one engine under steady requests, and samples what may leak: the engine's memory and
descriptors (its whole process group), the adapters that it lists, the directories that its proxy keeps, memory and
descriptors of Lorry's three programs. Prints a row a sample, and what a thousand syncs add by the second half of the run.
Ends with 1 where adapters, directories or descriptors grew, or one of Lorry's programs did. The engine's memory is shown and
not judged: an engine that leaks does so without Lorry, too (`--bare` loads and unloads by its own calls, for comparison).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "fakes"), str(ROOT / "tests" / "chaos"), str(ROOT / "clients" / "python" / "src")]

from adapters import Adapters  # noqa: E402
from generation import Busy, bare_loads  # noqa: E402
from testing import engines  # noqa: E402
from testing.engine_api import EngineApi  # noqa: E402
from testing.processes import footprint  # noqa: E402
from testing.world import World  # noqa: E402

SAMPLES = 20
# One request at a time: a sync waits for the engine's steps, and how many syncs there are is what counts here.
CLIENTS = 1
# What a process may gain in the second half of the run: caches fill, heaps keep what they once needed.
LORRY_GAIN_MIB = 8.0
DESCRIPTORS_GAIN = 4
MIB = 1 << 20


def sizes_of(pids: list[int]) -> tuple[float, int]:
    """MiB of memory of their own, and descriptors, of the processes together."""
    memory, descriptors = 0, 0
    for pid in pids:
        with contextlib.suppress(OSError):
            own, open_now = footprint(pid)
            memory += own
            descriptors += open_now
    return memory / MIB, descriptors


def group_of(leader: int) -> list[int]:
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if os.getpgid(int(entry.name)) == leader:
                found.append(int(entry.name))
    return found


class Sampler:
    def __init__(self, world: World, member: str) -> None:
        self._world, self._member = world, member
        self.rows: list[dict[str, float]] = []

    def take(self, syncs: int) -> None:
        fleet, engine = self._world.fleet, self._world.engines[self._member]
        row: dict[str, float] = {"syncs": syncs}
        row["engine MiB"], row["engine fds"] = sizes_of(group_of(engine.pid))
        row["adapters"] = len(EngineApi(engine).listed())
        row["directories"] = len(list((fleet.image_root / self._member / "versions").glob("*/*")))
        for name, service in (("store", fleet.store), ("orchestrator", fleet.orchestrator), ("proxy", fleet.proxies[self._member])):
            row[f"{name} MiB"], row[f"{name} fds"] = sizes_of([service.pid])
        if not self.rows:
            print("  ".join(f"{key:>16}" for key in row))
        print("  ".join(f"{value:16.1f}" if "MiB" in key else f"{value:16.0f}" for key, value in row.items()), flush=True)
        self.rows.append(row)

    def judge(self) -> int:
        """The status to end with, after the line of what a thousand syncs add."""
        half = self.rows[len(self.rows) // 2 :]
        grew = []
        added = []
        for key in half[0]:
            if key == "syncs":
                continue
            slope = statistics.linear_regression([r["syncs"] for r in half], [r[key] for r in half]).slope
            gain = slope * (half[-1]["syncs"] - half[0]["syncs"])
            added.append(f"{key} {1000 * slope:+.1f}")
            limit = LORRY_GAIN_MIB if "MiB" in key else DESCRIPTORS_GAIN if "fds" in key else 1.0
            if key != "engine MiB" and gain > limit:
                grew.append(f"{key} by {gain:.1f}")
        print("a thousand syncs add, by the second half: " + ", ".join(added))
        print("grew: " + (", ".join(grew) if grew else "nothing"))
        return int(bool(grew))


def publishes(world: World, run, adapters: Adapters) -> Callable[[], None]:
    numbers = itertools.count(1)

    def publish() -> None:
        folder = adapters.next()
        run.publish(folder, version=next(numbers)).wait("serving", 120)
        shutil.rmtree(folder)

    return publish


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak.py", description="syncs one engine without end, and looks for what grows")
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--engines", choices=("fake", "real"), default="fake")
    parser.add_argument("--kind", choices=engines.KINDS, default="vllm")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--bare", action="store_true", help="by the engine's own calls, without Lorry")
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lorry-soak-"))
    tiny = engines.tiny_model()
    make = engines.fake if args.engines == "fake" else engines.real
    engine = make(args.kind, tiny / "model", log_dir=folder, args=engines.SLOT_ARGS[args.kind])
    try:
        with World(args.bin_dir, folder, engine) as world, world.open_run() as run:
            adapters = Adapters(folder, tiny / "adapters" / "v1", seed=1)
            publish = publishes(world, run, adapters)
            publish()
            act = bare_loads(world, adapters) if args.bare else publish
            sampler = Sampler(world, args.kind)
            with Busy(world, CLIENTS) as busy:
                began, syncs = time.monotonic(), 0
                while time.monotonic() - began < args.seconds:
                    if time.monotonic() - began >= len(sampler.rows) * args.seconds / SAMPLES:
                        sampler.take(syncs)
                    act()
                    syncs += 1
                sampler.take(syncs)
            print(f"{len(busy.answers)} requests answered, {busy.late} not in time")
            return sampler.judge()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
