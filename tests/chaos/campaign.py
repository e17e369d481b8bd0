"""A seeded fault campaign over real services and fake engines. See README.md; `tests/chaos/run --help`.

The order and the choice of faults follow from the seed; what meets what, from the machine's speed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests"), str(ROOT / "tests" / "fakes"), str(ROOT / "clients" / "python" / "src")]

from adapters import Adapters  # noqa: E402
from clients import ALIAS, Clients  # noqa: E402
from frameworks import Colocated  # noqa: E402
from judge import LATEST, RECOVERY_S, Judge, lost  # noqa: E402
from ledger import Fault, Ledger, Version  # noqa: E402
from report import print_report  # noqa: E402
from strikes import SECOND, STRIKES, Stage, Strike, strike  # noqa: E402
from testing import engines, outlive  # noqa: E402
from testing.crowd import Crowd  # noqa: E402
from testing.waiting import NeverCame, moment, until  # noqa: E402
from trainers import Trainer  # noqa: E402
from watch import Watch  # noqa: E402

# One allows a lag of one, as by default, and keeps no more than what engines may still need; one allows none, so that whoever is
# left behind closes; of one all doors change together.
POLICIES = {
    "policy": {"stage_deadline_ms": 8000, "store_keep": 8},
    "strict": {"stage_deadline_ms": 8000, "store_keep": 0, "max_staleness": 0},
    "barrier": {"stage_deadline_ms": 8000, "store_keep": 0, "mode": "barrier", "barrier_deadline_ms": 10_000},
}
IN_ORDER = frozenset(a for a, policy in POLICIES.items() if policy.get("mode") == "barrier")
# Engines end requests within this, so that counts come down; and hold enough versions for all adapters.
TOKEN_DELAY_S = 0.004
# Two faults at once, so often.
TWO_AT_ONCE = 0.7
ROOT_OF_FRAMEWORKS = "frameworks"
CALM_S = 0.3


class Campaign:
    def __init__(self, world: Crowd, folder: pathlib.Path, seed: int, only: list[str]) -> None:
        self.ledger = Ledger()
        self._world, self._seed = world, seed
        self._draw = random.Random(seed)
        adapters = Adapters(folder, engines.tiny_model() / "adapters" / "v1", seed)
        self._trainers = {a: Trainer(world, self.ledger, adapters, a, seed) for a in POLICIES}
        # One door of each kind; nobody holds the others' engines.
        self._frameworks = [Colocated(world, self.ledger, adapters, m, folder / ROOT_OF_FRAMEWORKS / m, seed)
                            for m in world.engines if m.endswith("-1")]
        self._stage = Stage(world, self._trainers, self._draw, self.ledger)
        self._strikes = {s: w for s, w in STRIKES.items() if not only or s.__name__ in only}
        self._seen = 0
        self._last: dict[tuple[str, str], list[tuple[float, float, Version]]] = {}

    def run(self, seconds: float) -> None:
        for adapter, policy in POLICIES.items():
            self._world.admin.create(adapter, policy)
        clients = Clients(self.ledger, self._world.doors, list(POLICIES), self._seed)
        watch = Watch(self._world, self.ledger)
        with contextlib.ExitStack() as stack:
            for trainer in self._trainers.values():
                stack.enter_context(trainer)
            for adapter in POLICIES:
                until(lambda a=adapter: self.ledger.newest_good(a, time.monotonic()) != (0, 0), f"{adapter} is published")
                self._name(adapter)
            stack.enter_context(clients)
            stack.enter_context(watch)
            self._await_serving()
            for framework in self._frameworks:
                stack.enter_context(framework)
            began = time.monotonic()
            while time.monotonic() - began < seconds:
                self._round()
            for trainer in self._trainers.values():
                stack.callback(trainer.__exit__)
        for worker in (*self._trainers.values(), *self._frameworks, clients, watch):
            if worker.at_work():
                self.ledger.object(f"{type(worker).__name__}: {worker.at_work()} of its threads never ended")
        self._end()

    def _await_serving(self) -> None:
        """A door that never served has nothing that a fault could cost it."""
        now = time.monotonic()
        wanted = {a: self.ledger.newest_good(a, now) for a in POLICIES}
        self.ledger.served = until(lambda: self._recovered_at(now, wanted), "every door serves", RECOVERY_S)

    def _name(self, adapter: str) -> None:
        version = self.ledger.newest_good(adapter, time.monotonic())
        self.ledger.aliases[adapter, ALIAS] = [(time.monotonic(), version)]
        self._world.admin.set_alias(adapter, ALIAS, version)

    def _round(self) -> None:
        first, second = self._choose(), self._draw.choice(SECOND)
        together = self._draw.random() < TWO_AT_ONCE
        struck: list[Fault] = []
        print(f"  {time.monotonic() - self.ledger.began:7.1f} s  {first.__name__}{' and ' + second.__name__ if together else ''}",
              flush=True)
        struck.append(strike(self._stage, first,
                             lambda: struck.append(strike(self._stage, second, lambda: None)) if together else None))
        self._await_recovery(struck)
        moment(self._draw.uniform(0, CALM_S))

    def _choose(self) -> Strike:
        return self._draw.choices(list(self._strikes), list(self._strikes.values()))[0]

    def _await_recovery(self, faults: list[Fault]) -> None:
        """Until every door serves of every adapter what was stored when all was healed, or newer."""
        healed = max(f.healed for f in faults)
        wanted = {a: self.ledger.newest_good(a, healed) for a in POLICIES}
        try:
            until(lambda: self._recovered_at(healed, wanted), "every door serves", RECOVERY_S)
        except NeverCame:
            for fault in faults:
                fault.detail += ": " + ", ".join(self._missing(healed, wanted))
            return
        at = self._recovered_at(healed, wanted)
        for fault in faults:
            fault.healed, fault.recovered = healed, at

    def _recovered_at(self, healed: float, wanted: dict[str, Version]) -> float:
        """When the last door did; 0 while some do not."""
        self._read()
        firsts = [self._first(door, adapter, healed, version)
                  for door in self._world.doors for adapter, version in wanted.items()]
        return max(firsts) if all(firsts) else 0.0

    def _first(self, door: str, adapter: str, healed: float, version: Version) -> float:
        return next((received for sent, received, announced in self._last.get((door, adapter), [])
                     if sent >= healed and announced >= version), 0.0)

    def _missing(self, healed: float, wanted: dict[str, Version]) -> list[str]:
        return [f"{door} has no {adapter} {version}, last {self._last.get((door, adapter), [(0, 0, 'nothing')])[-1][2]}"
                for door in self._world.doors for adapter, version in wanted.items()
                if not self._first(door, adapter, healed, version)]

    def _read(self) -> None:
        """Of the replies that came since, what doors serve as latest."""
        replies = self.ledger.replies
        while self._seen < len(replies):
            reply = replies[self._seen]
            self._seen += 1
            if reply.status == 200 and reply.kind in LATEST:
                kept = self._last.setdefault((reply.door, reply.adapter), [])
                kept.append((reply.sent, reply.received, reply.announced))
                del kept[:-200]

    def _end(self) -> None:
        """Whatever was acknowledged, and was to be kept, is stored, and everybody ends when asked to."""
        for adapter, policy in POLICIES.items():
            stored = {(v.run, v.number) for v in self._world.admin.versions(adapter)}
            acknowledged = [e.version for e in self.ledger.all_published() if e.adapter == adapter and e.stored]
            for version in lost(acknowledged, stored, policy["store_keep"]):
                self.ledger.object(f"{adapter} {version} was acknowledged as stored and is gone")
            print(f"  {adapter}: {len(stored)} of {len(acknowledged)} versions are stored")
        for service in reversed(self._world.fleet.services()):
            status = service.stop()
            if status != 0:
                self.ledger.object(f"{service.label} ended with {status} on SIGTERM")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/chaos/run", description="a seeded fault campaign over real services")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=os.environ.get("LORRY_BIN_DIR"), help="the programs")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long faults are struck (300)")
    parser.add_argument("--seed", type=int, default=0, help="of the faults; drawn, and printed, where it is not given")
    parser.add_argument("--engines", type=int, default=4, help="half SGLang, half vLLM (4)")
    parser.add_argument("--only", action="append", default=[], help="strike with these alone (strikes.py), for example kill_store")
    parser.add_argument("--busy", action="store_true", help="judge no refusals: the machine has other work, which may be why")
    parser.add_argument("--keep", action="store_true", help="leave logs and records where they are, and say where")
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    seed = args.seed or random.SystemRandom().randrange(1, 1 << 31)
    members = [f"{kind}-{i}" for i in range(1, args.engines // 2 + 1) for kind in engines.KINDS]
    outlive.guard()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lorry-chaos-"))
    after_sleep = random.Random(seed).choice(["kept", "gone", "base"])  # what has become of adapters
    switches = {"token_delay_s": TOKEN_DELAY_S, "after_sleep": after_sleep}
    root = folder / ROOT_OF_FRAMEWORKS
    root.mkdir()
    slots = {"sglang": ["--max-loaded-loras", "18"], "vllm": ["--max-cpu-loras", "18"]}
    print(f"seed {seed}, logs in {folder}", flush=True)
    failed = True
    try:
        with Crowd(args.bin_dir, folder, engines.tiny_model() / "model", *members, switches=switches, args=slots,
                   proxy_flags={"bindings-root": root}) as world:
            campaign = Campaign(world, folder, seed, args.only)
            campaign.run(args.seconds)
            violations = Judge(campaign.ledger, world.faults.events(), IN_ORDER, args.busy).all()
        print_report(campaign.ledger, violations, seed, args.seconds)
        campaign.ledger.dump(folder / "ledger.jsonl")
        failed = bool(violations)
        return int(failed)
    finally:
        if failed or args.keep:
            print(f"logs, and all that was seen in ledger.jsonl, in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
