"""usage: examples/demo/run [--versions N] [--workers N] [--keep] [--plain]

Publishes a version after every training step while clients keep both doors busy; ends with a summary, and with exit status
1 when one of its claims does not hold.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import queue
import re
import shutil
import statistics
import sys
import threading
import time

import lorry
from demo import ledger
from demo.rollouts import ADAPTER, Clients, Door, Rollout
from demo.screen import Scene, Screen, Sync
from demo.trainer import State, Trainer
from demo.watch import Watcher
from testing import engines
from testing.fleet import Fleet, ServiceFailed

BATCH = 24
# Training on two cores that also run two engines: a batch takes seconds; a minute without one is a fault.
BATCH_DEADLINE_S = 180.0
SERVING_DEADLINE_S = 120.0
PROMPTS = [[1, 40 + 7 * i, 90 + 5 * i, 130 + 3 * i] for i in range(8)]


def main() -> int:
    arguments = parse()
    logs_stay = arguments.keep
    try:
        return Demo(arguments, arguments.folder).run()
    except (engines.EngineFailed, ServiceFailed, TimeoutError) as failure:
        logs_stay = True
        print(f"\ndemo: {failure}\nThe logs stay in {arguments.folder}", file=sys.stderr)
        return 1
    finally:
        if not logs_stay:
            shutil.rmtree(arguments.folder, ignore_errors=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--versions", type=int, default=10, help="versions to publish after the first (10)")
    parser.add_argument("--workers", type=int, default=2, help="requests in flight at each door (2)")
    parser.add_argument("--keep", action="store_true", help="leave everything running at the end, until Ctrl-C")
    parser.add_argument("--plain", action="store_true", help="lines instead of a live screen")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    return parser.parse_args()


class Demo:
    """One run of it."""

    def __init__(self, arguments: argparse.Namespace, folder: pathlib.Path) -> None:
        self.arguments = arguments
        self.folder = folder
        self.scene = Scene()
        self.states: dict[int, State] = {}
        self.digests: dict[int, str] = {}
        self.screen = Screen(self.scene, None, arguments.plain)

    def run(self) -> int:
        model = engines.tiny_model() / "model"
        pair = [engines.real(kind, model, log_dir=self.folder / kind) for kind in ("sglang", "vllm")]
        with self.screen:
            minutes = max(engine.start_deadline_s for engine in pair) / 60
            self.screen.say(f"starting SGLang and vLLM on the CPU: about a minute, {minutes:.0f} at most; logs: {self.folder}")
            with engines.running(*pair), Fleet(os.environ["BIN_DIR"], self.folder, {e.kind: e.url for e in pair}) as fleet:
                trainer = Trainer(model)
                admin = lorry.Admin(**fleet.addresses())
                with Watcher(self.scene, admin):
                    clients = self.train(fleet, trainer)
                    self.screen.say(f"recomputing {len(clients.rollouts)} answers with torch and peft")
                    verdict = ledger.judge(trainer, self.states, self.digests, clients.rollouts)
                    moved = bytes_by_transport(fleet)
                    self.screen.__exit__()
                admin.close()
                holds = summary(self.screen, self.scene, clients, verdict, moved)
                if self.arguments.keep:
                    self.keep(fleet)
        return 0 if holds else 1

    def train(self, fleet: Fleet, trainer: Trainer) -> Clients:
        doors = [Door(member, member, fleet.door(member)) for member in fleet.proxies]
        clients = Clients(doors, PROMPTS, self.arguments.workers)
        self.wait_for_engines(len(doors))
        with lorry.open_run(ADAPTER, **fleet.addresses()) as run:
            self.publish(run, trainer, 0)
            self.screen.clients = clients
            clients.start()
            try:
                for version in range(1, self.arguments.versions + 1):
                    self.screen.say(f"rollouts of v{version - 1}")
                    batch = collect(clients, version - 1)
                    self.screen.say(f"training on {len(batch)} rollouts")
                    self.scene.rewards.append(trainer.step(batch))
                    self.publish(run, trainer, version)
                    self.screen.published()
                collect(clients, self.arguments.versions)
            finally:
                clients.stop()
        return clients

    def wait_for_engines(self, count: int) -> None:
        """A member that joins later would be brought up to date too, but its door has nothing to serve until then."""
        self.screen.say("waiting for both proxies to know their engines")
        end = time.monotonic() + SERVING_DEADLINE_S
        while time.monotonic() < end:
            if sum(m["state"] == "READY" for m in self.scene.status.get("members", [])) == count:
                return
            time.sleep(0.2)
        raise TimeoutError(f"not all engines became READY: {self.scene.status}")

    def publish(self, run: lorry.Run, trainer: Trainer, version: int) -> None:
        self.screen.say(f"publishing v{version}")
        self.states[version] = trainer.snapshot()
        began = time.monotonic()
        handle = run.publish(trainer.model, version=version, reference=PROMPTS, progress=False)
        handle.wait("stored", timeout=SERVING_DEADLINE_S)
        stored = time.monotonic()
        serving = handle.wait("serving", timeout=SERVING_DEADLINE_S)
        self.digests[version] = handle.digest
        self.scene.syncs.append(Sync(version, (stored - began) * 1e3, serving.stage_ms, serving.commit_ms,
                                     serving.activate_ms, (time.monotonic() - began) * 1e3, serving.active))

    def keep(self, fleet: Fleet) -> None:
        store, orchestrator = fleet.addresses()["store"], fleet.addresses()["orchestrator"]
        cli = pathlib.Path(os.environ["BIN_DIR"]) / "lorry"
        print("\nEverything goes on running. Try in another terminal:\n")
        print(f"  export LORRY_STORE={store} LORRY_ORCHESTRATOR={orchestrator}")
        print(f"  {cli} status\n  {cli} versions {ADAPTER}\n  {cli} rollback {ADAPTER} 3")
        for member in fleet.proxies:
            print(f"  curl {fleet.door(member)}/v1/models    # {member}")
        print("\nCtrl-C ends it.", flush=True)
        threading.Event().wait()


def collect(clients: Clients, version: int) -> list[Rollout]:
    """The next BATCH rollouts of `version`; older ones are off-policy by now and left out."""
    batch: list[Rollout] = []
    end = time.monotonic() + BATCH_DEADLINE_S
    while len(batch) < BATCH:
        try:
            rollout = clients.fresh.get(timeout=max(0.1, end - time.monotonic()))
        except queue.Empty:
            raise TimeoutError(f"{len(batch)} of {BATCH} answers of v{version} came in {BATCH_DEADLINE_S:.0f} s") from None
        if rollout.version == version:
            batch.append(rollout)
    return batch


def bytes_by_transport(fleet: Fleet) -> dict[str, int]:
    """Image bytes store → proxies, by transport, from the proxies' metrics."""
    moved: dict[str, int] = {}
    for proxy in fleet.proxies.values():
        for transport, value in re.findall(r'lorry_proxy_fetch_bytes_total\{transport="([\w-]+)"\} (\S+)', proxy.metrics()):
            moved[transport] = moved.get(transport, 0) + int(float(value))
    return moved


def summary(screen: Screen, scene: Scene, clients: Clients, verdict: ledger.Verdict, moved: dict[str, int]) -> bool:
    """Prints what happened; True when every claim holds."""
    totals = sorted(s.total_ms for s in scene.syncs[1:]) or [0.0]
    p99 = totals[min(len(totals) - 1, int(len(totals) * 0.99))]
    lines = [
        ("versions published", str(len(scene.syncs)), len(scene.syncs) > 1),
        ("publish → serving everywhere, median / p99", f"{statistics.median(totals):.0f} / {p99:.0f} ms", True),
        ("requests sent", str(clients.sent), clients.sent > 0),
        ("failed", str(len(clients.failures)), not clients.failures),
        ("answered by a version other than announced",
         str(len(verdict.other_version) + len(verdict.wrong_digest) + len(verdict.unexplained)),
         not (verdict.other_version or verdict.wrong_digest or verdict.unexplained)),
        ("answered by the base model", str(len(verdict.base_model)), not verdict.base_model),
        ("answers recomputed with torch + peft", str(verdict.checked), verdict.checked == len(clients.rollouts)),
        ("largest log-probability gap, trainer to engines", f"{verdict.largest_gap:.1e}", True),
        ("largest gap that proxies measured before serving", f"{max(scene.gaps.values(), default=0.0):.1e}", bool(scene.gaps)),
        ("smallest gap of an answer to the base model", f"{verdict.smallest_base_gap:.1e}",
         verdict.smallest_base_gap > ledger.TOLERANCE),
        ("bytes store → proxies", ", ".join(f"{t} {n:,}" for t, n in sorted(moved.items())) or "none",
         moved.get("ucx-shm", 0) > 0),
        ("reward, first → last step", f"{scene.rewards[0]:.2f} → {scene.rewards[-1]:.2f}",
         scene.rewards[-1] > scene.rewards[0]),
    ]
    screen.console.print("\n[bold]Lorry demo[/bold]")
    for what, value, holds in lines:
        screen.console.print(f"  {'[green]✓[/green]' if holds else '[red]✗[/red]'} {what:<50} {value}")
    for failure in clients.failures[:5]:
        screen.console.print(f"    [red]{failure.door}[/red] {failure.what}")
    return all(holds for _, _, holds in lines)


if __name__ == "__main__":
    sys.exit(main())
