"""A fleet in front of engines, what was published on it, and rollout clients whose every answer is proved.

    with World(bin_dir, folder, engines.fake("sglang", model), engines.fake("vllm", model)) as world:
        with world.open_run() as run:
            world.publish(run, 1, adapter_dir)
        world.prove(world.doors["vllm"].ask("policy"), version=1)

A fake engine's tokens follow from the bytes that it loaded, so an answer proves which version gave it.
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lorry

from testing.doors import DEADLINE_S as ANSWERED_S
from testing.doors import Answer, DoorClient
from testing.engines import ROOT, Engine
from testing.fleet import Fleet, Service
from testing.waiting import DEADLINE_S, NeverCame, until
from testing.workers import Workers

sys.path.append(str(ROOT / "tests" / "fakes"))
from engine_core import expected_tokens  # noqa: E402

ADAPTER = "policy"
# What we promise once everything is up again: a stage deadline of the tests and the longest of the short backoffs
# (5 s of a session, 2 s of a fetch), with room for a machine that compiles beside it.
CONVERGE_S = 30.0


def judge_fake(answer: Answer, folder: pathlib.Path) -> None:
    """Asserts that a fake engine answered with the bytes in `folder`."""
    wanted = expected_tokens(folder, answer.prompt, len(answer.tokens))
    assert answer.tokens == wanted, f"announced {answer.headers}, but the bytes of {folder} answer otherwise"


class World:
    """Starts the engines that do not run yet, and the fleet; ends both, and prints the services' logs when the block failed."""

    def __init__(
        self,
        bin_dir: os.PathLike[str],
        folder: pathlib.Path,
        *engines: Engine,
        store_flags: Mapping[str, object] | None = None,
        proxy_flags: Mapping[str, object] | None = None,
        wait_ready: bool = True,
        absent: Sequence[str] = (),
    ) -> None:
        """`absent`: engines that are not there yet, nor their proxies; see `join`."""
        self._wait_ready = wait_ready
        self._absent = absent
        self.engines: dict[str, Engine] = {e.name: e for e in engines}
        self._borrowed = [e for e in engines if e.is_running()]
        self.fleet = Fleet(bin_dir, folder, {e.name: e.url for e in engines}, store_flags, proxy_flags)
        self.judge: Callable[[Answer, pathlib.Path], None] = judge_fake
        self.published: dict[str, tuple[int, int, pathlib.Path]] = {}  # digest → run, number, directory
        self.doors: dict[str, DoorClient] = {}
        self.admin = lorry.Admin(**self.fleet.addresses())

    def __enter__(self) -> World:
        try:
            present = [m for m in self.engines if m not in self._absent]
            own = [e for e in self._own_engines() if e.name in present]
            for engine in own:
                engine.start()
            for engine in own:
                engine.wait_ready()
            self.fleet.start(self._absent)
            self.doors = {m: self._door(m) for m in present}
            for member in present if self._wait_ready else ():
                self.wait_ready(member)
        except BaseException:
            self.print_logs()
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.admin.close()
        self.fleet.close()
        for engine in self._own_engines():
            engine.close()

    def join(self, *members: str) -> None:
        """Starts what was absent: engines, their proxies, and the doors; nothing is waited for beyond that."""
        for member in members:
            self.engines[member].start()
        for member in members:
            self.engines[member].wait_ready()
            self.fleet.proxies[member].start().wait_ready()
            self.doors[member] = self._door(member)

    def wait_ready(self, *members: str) -> None:
        for member in members:
            until(lambda m=member: self.member(m).get("state") == "READY", f"{member} is READY")

    def _door(self, member: str) -> DoorClient:
        return DoorClient(self.engines[member].kind, self.fleet.door(member))

    def _own_engines(self) -> list[Engine]:
        return [e for e in self.engines.values() if e not in self._borrowed]

    def print_logs(self, lines: int = 30) -> None:
        for service in self.fleet.services():
            print(f"===== {service.label}\n{service.log_tail(lines)}")

    def doctor(self, bin_dir: os.PathLike[str]) -> tuple[int, list[dict[str, str]]]:
        """`lorry doctor`: its exit status, and what it finds: [{grade, what, remedy}]."""
        at = [f"--{service}={address}" for service, address in self.fleet.addresses().items()]
        ran = subprocess.run([pathlib.Path(bin_dir) / "lorry", "--json", *at, "doctor"], check=False, capture_output=True, text=True)
        assert ran.stdout, ran.stderr
        return ran.returncode, [json.loads(line) for line in ran.stdout.splitlines()]

    # --- Publishing ---

    def open_run(self, adapter: str = ADAPTER, **arguments: Any) -> lorry.Run:
        return lorry.open_run(adapter, **arguments, **self.fleet.addresses())

    def publish(
        self, run: lorry.Run, number: int, folder: pathlib.Path, until_: str = "serving", timeout: float = DEADLINE_S
    ) -> lorry.PublishHandle:
        """Publishes and waits until it is stored or serving."""
        handle = run.publish(folder, version=number)
        handle.wait("stored", timeout)
        self.published[handle.digest] = run.number, number, folder
        handle.wait(until_, timeout)
        return handle

    # --- What the orchestrator says ---

    def member(self, member: str) -> dict[str, Any]:
        found = [m for m in self.admin.status().get("members", []) if m["member"] == member]
        return found[0] if found else {}

    def verdict(self, member: str, number: int, adapter: str = ADAPTER) -> str:
        """What keeps engines of the member's kind from loading the version: "REFUSED: their words"; empty when nothing does."""
        kind = self.engines[member].kind
        for pool in self.admin.status().get("pools", []):
            for told in pool.get("verdicts", []) if pool["adapter"] == adapter else []:
                if int(told["version"].get("number", 0)) == number and told["engines"].lower().startswith(kind):
                    return f"{told['verdict']}: {told.get('detail', '')}"
        return ""

    def wait_refused(self, number: int, words: str, *members: str, adapter: str = ADAPTER, deadline_s: float = DEADLINE_S) -> None:
        """Until each of the members' engines (all) is known to refuse the version, in those words."""
        for member in members or self.engines:
            why = until(lambda m=member: self.verdict(m, number, adapter), f"{member} refuses v{number}", deadline_s)
            assert why.startswith("REFUSED: ") and words in why, why

    def loaded(self, member: str) -> set[tuple[int, int]]:
        """(run, number) of what the member reports as LOADED."""
        residencies = self.member(member).get("observed", {}).get("residencies", [])
        return {
            (int(r["version"]["run"]), int(r["version"].get("number", 0)))
            for r in residencies
            if r["state"] == "RESIDENCY_STATE_LOADED"
        }

    def residency(self, member: str, number: int) -> str:
        """Where version `number` stands on the member: "LOADING", "LOADED", ...; empty: nowhere."""
        for r in self.member(member).get("observed", {}).get("residencies", []):
            if int(r["version"].get("number", 0)) == number:
                return str(r["state"]).removeprefix("RESIDENCY_STATE_")
        return ""

    def reported(self, member: str, number: int, adapter: str = ADAPTER) -> dict[str, Any]:
        """What the member reports of the version; empty where it has none of it."""
        for r in self.member(member).get("observed", {}).get("residencies", []):
            if (r["version"]["adapter"], int(r["version"].get("number", 0))) == (adapter, number):
                return dict(r)
        return {}

    def told(self, member: str, number: int, adapter: str = ADAPTER) -> str:
        """Where the version stands on the member and what is said of it: "LOADED", "FAILED BASE_MODEL_MISMATCH", "ABSENT"."""
        r = self.reported(member, number, adapter)
        return f"{r['state'].removeprefix('RESIDENCY_STATE_')} {r.get('reason', '')}".strip() if r else "ABSENT"

    def metric(self, member: str, name: str, **labels: str) -> float:
        """Of the member's proxy; the labels in the order of their names."""
        inside = ",".join(f'{k}="{v}"' for k, v in sorted(labels.items()))
        wanted = f"{name}{{{inside}}} " if inside else f"{name} "
        found = self.fleet.proxies[member].samples(wanted)
        assert len(found) == 1, f"{wanted}: {found}"
        return found[0]

    def metric_sum(self, member: str, name: str) -> float:
        """Of all its series at one moment: what moves between them is counted once."""
        return sum(self.fleet.proxies[member].samples(f"{name}{{"))

    def pool(self, adapter: str = ADAPTER) -> dict[str, Any]:
        """What is said of the adapter in the pool that lists it first; empty where nobody knows it."""
        return next((p for p in self.admin.status().get("pools", []) if p["adapter"] == adapter), {})

    def latest(self, adapter: str = ADAPTER) -> tuple[int, int]:
        """(run, number) of the pool's last decision; (0, 0) before the first."""
        told = self.pool(adapter).get("latest", {})
        return int(told.get("run", 0)), int(told.get("number", 0))

    def waits_for(self, adapter: str = ADAPTER) -> str:
        """Why the newest version is not latest, as `lorry status` says it: "MEMBERS_ATTACHING"; empty: no reason is given."""
        return str(self.pool(adapter).get("running", {}).get("reason", ""))

    def serves(self, member: str, number: int, name: str = ADAPTER) -> bool:
        """Whether the member's door answers `name` with that version, proved."""
        answer = self.doors[member].ask(name)
        if answer.status != 200:
            return False
        self.prove(answer)
        return answer.version == number

    def wait_serves(self, number: int, members: Sequence[str] = (), deadline_s: float = CONVERGE_S) -> None:
        """Until the members' doors announce `number`."""
        for member in members or self.engines:
            try:
                until(lambda m=member: self.serves(m, number), f"{member} serves v{number}", deadline_s)
            except NeverCame:
                self.print_logs()
                raise

    # --- Proof ---

    def prove(self, answer: Answer, version: int | None = None, run: int | None = None) -> None:
        """Asserts that a 200 was generated by exactly the version that its headers announce."""
        assert answer.status == 200, f"{answer.status} {answer.reason} {answer.message}"
        assert answer.digest in self.published, f"announced a digest that nobody published: {answer.headers}"
        made_by, number, folder = self.published[answer.digest]
        assert (answer.run, answer.version) == (made_by, number), answer.headers
        assert answer.tokens, answer.body
        self.judge(answer, folder)
        assert version is None or answer.version == version, f"v{answer.version} and not v{version}"
        assert run is None or answer.run == run, f"run {answer.run} and not {run}"


class Steps:
    """A training loop: each `next()` publishes the next number with bytes of its own."""

    def __init__(self, world: World, run: lorry.Run, make_adapter: Callable[[int], pathlib.Path]) -> None:
        self.number = 0
        self.epoch = 0
        self._world, self._run, self._make = world, run, make_adapter

    def next(self, until_: str = "serving") -> lorry.PublishHandle:
        """Publishes, and waits until it is stored or serving."""
        self.number += 1
        return self._world.publish(self._run, self.number, self._make(self.number), until_)

    def begin(self) -> lorry.PublishHandle:
        """Publishes without waiting; `finish` waits."""
        self.number += 1
        return self._run.publish(self._make(self.number), version=self.number)

    def finish(self, handle: lorry.PublishHandle, timeout: float = DEADLINE_S) -> None:
        """Until it is stored, decided in an epoch above all before, and served at every door."""
        handle.wait("stored", timeout)
        self._world.published[handle.digest] = self._run.number, handle.number, self._make(handle.number)
        epoch = handle.wait("serving", timeout).epoch
        assert epoch > self.epoch, f"epoch {epoch} after {self.epoch}"
        self.epoch = epoch
        assert self._world.latest() == (self._run.number, handle.number)
        self._world.wait_serves(handle.number)


class Traffic(Workers):
    """Clients that ask every door for `policy`, over and over, from enter to exit; `check()` judges what they saw."""

    def __init__(self, world: World, workers: int = 2, name: str = ADAPTER, pause_s: float = 0.01) -> None:
        self.answers: list[tuple[str, Answer]] = []
        self.broken: list[tuple[str, str]] = []
        self._world, self._name, self._pause_s = world, name, pause_s
        work = [functools.partial(self._work, member, i) for member in world.doors for i in range(workers)]
        super().__init__(*work, join_s=ANSWERED_S + DEADLINE_S)

    def _work(self, member: str, seed: int) -> None:
        turn = seed
        while not self._stop.is_set():
            turn += 1
            try:
                answer = self._world.doors[member].ask(self._name, tokens=6, stream=turn % 3 == 0)
                self.answers.append((member, answer))
            except TimeoutError:
                raise  # a request that nobody answers is wrong at any door, a victim's, too, and the exit says so
            except (OSError, ValueError, http.client.HTTPException) as error:
                self.broken.append((member, f"{type(error).__name__}: {error}"))
            self._stop.wait(self._pause_s)

    def good(self, member: str = "") -> int:
        return sum(a.status == 200 and member in ("", m) for m, a in self.answers)

    def refused(self) -> set[tuple[str, str]]:
        """(member, reason) of every answer that is no 200."""
        return {(m, a.reason or f"{a.status} {a.message}") for m, a in self.answers if a.status != 200}

    def check(self, *victims: str) -> None:
        """Asserts that every 200 was what it announced, and that no door but the victims' gave or lost anything else."""
        for _, answer in list(self.answers):
            if answer.status == 200:
                self._world.prove(answer)
        refused = {(m, why) for m, why in self.refused() if m not in victims}
        broken = [(m, why) for m, why in self.broken if m not in victims]
        assert not refused and not broken, f"refused {sorted(refused)}, broken {broken[:5]}, of {len(self.answers)} answers"


def restart(*services: Service, kill: bool = True) -> None:
    """Ends the services, by SIGKILL unless told otherwise, and starts them again."""
    for service in services:
        service.kill() if kill else service.stop()
        service.start()
    for service in services:
        service.wait_ready()
