"""The faults: what each breaks, for how long, and how it is healed. Drawn by one seed, on one thread."""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import lorry
from clients import ALIAS
from ledger import Fault, Ledger, Rollback
from lorry.sync.v1 import sync_pb2
from testing.crowd import Crowd
from testing.engines import Engine
from testing.faults import DIE_AT_LOAD, DIE_AT_USE
from testing.fleet import Service
from testing.waiting import moment, until
from trainers import Trainer, Wrong

WORDS = "lora_A of layer 0 is no matrix"
# A process is away, or stands still, for a moment, or in an eighth of the cases for longer than a session's patience (5 s).
AWAY_S = 6.0
MOMENT_S = 1.0
LONG = 0.125
# Of an operator who looks at `lorry status`, and adopts.
OPERATOR_DEADLINE_S = 40.0


@dataclass
class Stage:
    """What strikes act on."""

    world: Crowd
    trainers: dict[str, Trainer]
    draw: random.Random
    ledger: Ledger

    def member(self) -> str:
        return self.draw.choice(sorted(self.world.engines))

    def trainer(self) -> Trainer:
        return self.trainers[self.draw.choice(sorted(self.trainers))]

    def while_away(self) -> None:
        is_long = self.draw.random() < LONG
        moment(self.draw.uniform(AWAY_S - 1, AWAY_S) if is_long else self.draw.uniform(0, MOMENT_S))


# A strike touches members, and is healed when its generator ends; it yields once, when it has struck.
Strike = Callable[[Stage], Iterator[tuple[str, frozenset[str]]]]


def _everybody(stage: Stage) -> frozenset[str]:
    return frozenset(stage.world.engines)


def _start(*victims: Service | Engine) -> None:
    """Whoever is not running: another strike may have started it meanwhile."""
    for victim in victims:
        if not victim.is_running():
            victim.start()
    for victim in victims:
        victim.wait_ready()


def _kill_service(stage: Stage, service: Service, touches: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    service.kill()
    yield service.label, touches
    stage.while_away()
    _start(service)


def kill_store(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    yield from _kill_service(stage, stage.world.fleet.store, frozenset())


def kill_orchestrator(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    yield from _kill_service(stage, stage.world.fleet.orchestrator, frozenset())


def kill_proxy(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    member = stage.member()
    yield from _kill_service(stage, stage.world.fleet.proxies[member], frozenset([member]))


def kill_engine(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    member = stage.member()
    engine = stage.world.engines[member]
    engine.kill()
    yield member, frozenset([member])
    stage.while_away()
    _start(engine)


def kill_everything(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    services, engines = stage.world.fleet.services(), list(stage.world.engines.values())
    for victim in [*services, *engines]:
        victim.kill()
    yield "all", _everybody(stage)
    _start(*engines, *services)


def _suspend(stage: Stage, victim: Service | Engine, name: str, touches: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    victim.suspend()
    try:
        yield name, touches
        stage.while_away()
    finally:
        victim.resume()


def stop_store(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    yield from _suspend(stage, stage.world.fleet.store, "store", frozenset())


def stop_orchestrator(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    yield from _suspend(stage, stage.world.fleet.orchestrator, "orchestrator", frozenset())


def stop_proxy(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    member = stage.member()
    yield from _suspend(stage, stage.world.fleet.proxies[member], member, frozenset([member]))


def stop_engine(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    member = stage.member()
    yield from _suspend(stage, stage.world.engines[member], member, frozenset([member]))


def cut_wire(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    """Between a proxy and the orchestrator: broken, or swallowed."""
    member = stage.member()
    wire = stage.world.wires[member]
    wire.cut() if stage.draw.random() < 0.5 else wire.freeze()
    yield member, frozenset()
    stage.while_away()
    wire.heal()


def restart_with_a_version_meanwhile(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    leader = stage.world.fleet.orchestrator
    before = stage.world.admin.versions(stage.trainer().adapter)[:1]
    leader.kill()
    yield "orchestrator", frozenset()
    adapter = before[0].adapter if before else ""
    if adapter:
        with contextlib.suppress(AssertionError):
            until(lambda: stage.world.admin.versions(adapter)[:1] != before, "a version is stored meanwhile", AWAY_S)
    _start(leader)


def _order(stage: Stage, how: str, on: list[str], touches: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    trainer = stage.trainer()
    trainer.order(Wrong(how, on))
    yield f"{trainer.adapter}: {how}", touches
    stage.while_away()


def killer_at_load(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    yield from _order(stage, DIE_AT_LOAD, [], _everybody(stage))


def killer_at_use(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    yield from _order(stage, DIE_AT_USE, [], _everybody(stage))


def refused_by_all(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    yield from _order(stage, WORDS, [], frozenset())


def refused_by_one(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    yield from _order(stage, WORDS, [stage.member()], frozenset())


def new_run(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    trainer = stage.trainer()
    trainer.start_over()
    yield trainer.adapter, frozenset()
    stage.while_away()


def rollback(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    """An operator pins the version before the last, and lifts the pin a while later."""
    adapter = stage.trainer().adapter
    stored = stage.world.admin.versions(adapter)
    pin = Rollback(adapter, time.monotonic())
    stage.ledger.rollbacks.append(pin)
    yield adapter, frozenset()
    if len(stored) > 1:
        with contextlib.suppress(lorry.LorryError):  # what it named may be gone, or one that no engine takes
            stage.world.admin.rollback(adapter, (stored[1].run, stored[1].number))
    stage.while_away()
    stage.world.admin.rollback(adapter, None)
    pin.ended = time.monotonic()


def move_alias(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    adapter = stage.trainer().adapter
    stored = stage.world.admin.versions(adapter)
    yield adapter, frozenset()
    if stored:
        named = stored[0].run, stored[0].number
        stage.ledger.aliases.setdefault((adapter, ALIAS), []).append((time.monotonic(), named))
        with contextlib.suppress(lorry.LorryError):
            stage.world.admin.set_alias(adapter, ALIAS, named)
    stage.while_away()


def lease_newest(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    adapter = stage.trainer().adapter
    yield adapter, frozenset()
    with contextlib.suppress(lorry.LorryError):
        stage.world.admin.lease(f"{adapter}@newest", "campaign", AWAY_S)
    stage.while_away()


def lose_records(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    """The orchestrator's, wiped or restored from a copy made earlier; an operator looks, and adopts."""
    leader = stage.world.fleet.orchestrator
    backup = stage.world.fleet.folder / "backup"
    leader.kill()
    restored = backup.exists() and stage.draw.random() < 0.5
    shutil.rmtree(leader.data_dir)
    if restored:
        shutil.copytree(backup, leader.data_dir)
    yield "restored" if restored else "wiped", frozenset()
    stage.while_away()
    _start(leader)
    until(lambda: _adopted(stage), "an operator adopts the fleet", OPERATOR_DEADLINE_S)


def _adopted(stage: Stage) -> bool:
    """An operator in haste: nothing is adopted before every proxy could say what it serves."""
    connection = stage.world.admin._connection
    try:
        connection.call(connection.sync.AdoptFleet, sync_pb2.AdoptFleetRequest(cluster="lorry", newest=True))
    except lorry.LorryError as error:
        return error.reason == "NOT_ADOPTABLE"
    return True


def back_up_records(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    leader = stage.world.fleet.orchestrator
    leader.stop()
    backup = stage.world.fleet.folder / "backup"
    shutil.rmtree(backup, ignore_errors=True)
    shutil.copytree(leader.data_dir, backup)
    yield "orchestrator", frozenset()
    _start(leader)


def wipe_proxy(stage: Stage) -> Iterator[tuple[str, frozenset[str]]]:
    member = stage.member()
    proxy = stage.world.fleet.proxies[member]
    proxy.kill()
    shutil.rmtree(proxy.data_dir)
    yield member, frozenset([member])
    stage.while_away()
    _start(proxy)


# Weights of the draw: what happens often in a fleet's life comes often.
STRIKES: dict[Strike, int] = {
    kill_store: 3, kill_orchestrator: 3, kill_proxy: 3, kill_engine: 3, kill_everything: 1,
    stop_store: 2, stop_orchestrator: 2, stop_proxy: 2, stop_engine: 2, cut_wire: 2,
    restart_with_a_version_meanwhile: 3,
    killer_at_load: 2, killer_at_use: 2, refused_by_all: 2, refused_by_one: 2,
    new_run: 1, rollback: 2, move_alias: 2, lease_newest: 1,
    back_up_records: 1, lose_records: 1, wipe_proxy: 2,
}  # fmt: skip


# What may strike while something else is broken.
SECOND = (kill_proxy, kill_engine, stop_proxy, stop_engine, cut_wire, killer_at_load, killer_at_use, refused_by_all,
          refused_by_one, new_run)


def strike(stage: Stage, chosen: Strike, meanwhile: Callable[[], None]) -> Fault:
    """Strikes, does what shall happen meanwhile, and heals."""
    steps = chosen(stage)
    fault = Fault(chosen.__name__.replace("_", " "), _everybody(stage), time.monotonic())
    stage.ledger.faults.append(fault)
    fault.detail, fault.touches = next(steps)
    meanwhile()
    for _ in steps:
        pass
    fault.healed = time.monotonic()
    return fault
