"""No engine is left paused, and no request hangs, whoever is killed, stopped or cut off while engines come to rest."""

import contextlib

import pytest
from testing.crowd import Crowd
from testing.pauses import MODES, SOON_S, Running, paused, policy, row
from testing.waiting import until
from testing.workers import at_once
from testing.world import ADAPTER, Traffic, restart


@pytest.fixture(scope="module")
def worlds(bin_dir, tiny, tmp_path_factory):
    """For each mode a fleet whose engines are paused once nothing runs."""
    flags = {"drain-grace-ms": 1_000}  # a door that drains waits for what it holds, too
    made = {
        mode: Crowd(bin_dir, tmp_path_factory.mktemp(mode), tiny / "model", "vllm-1", "vllm-2", proxy_flags=flags)
        for mode in MODES
    }
    with contextlib.ExitStack() as stack:
        at_once(stack.enter_context, made.values())
        for mode, world in made.items():
            world.admin.create(ADAPTER, policy(mode, "wait", drain_deadline_ms=60_000))
        yield made


def crash(world: Crowd, member: str) -> None:
    """The engine dies at once, and is started again."""
    with contextlib.suppress(OSError):
        world.engines[member].call("POST", "/_fake/die", {})


def stop(world: Crowd) -> None:
    """The orchestrator stands still until both sessions are over."""
    world.fleet.orchestrator.suspend()
    until(lambda: not paused(world), "engines go on without the orchestrator")
    world.fleet.orchestrator.resume()


def stand_still(world: Crowd) -> None:
    """The proxy of a paused engine stands still until its session is over: only it can let its engine go on."""
    proxy = world.fleet.proxies["vllm-1"]
    proxy.suspend()
    until(lambda: world.member("vllm-1").get("state") != "READY", "its session is over")
    proxy.resume()


def silence(world: Crowd) -> None:
    """Both engines stand still until their proxies have given them up."""
    for engine in world.engines.values():
        engine.suspend()
    for member in world.engines:
        until(lambda m=member: world.member(m).get("state") != "READY", f"{member} is missed")
    for engine in world.engines.values():
        engine.resume()


def cut(world: Crowd) -> None:
    for wire in world.wires.values():
        wire.cut()
    until(lambda: not paused(world), "engines go on without the orchestrator")
    for wire in world.wires.values():
        wire.heal()


def end(world: Crowd) -> None:
    """The proxy of a paused engine is taken away. It lets the engine go on first, which takes two attempts where it is paused
    now: by the second the member has left the roster, and nothing else keeps the process."""
    engine, is_locked = world.engines["vllm-1"], row(world, "vllm-1") == "LOCKED"
    engine.set(refuse_resumes=int(is_locked))
    world.fleet.proxies["vllm-1"].stop()
    assert engine.set()["refuse_resumes"] == 0
    assert "vllm-1" not in paused(world)
    world.fleet.proxies["vllm-1"].start().wait_ready()


FAULTS = {
    "the proxy that is locked is taken away": end,
    "the proxy that is locked": lambda world: restart(world.fleet.proxies["vllm-1"]),
    "the proxy whose engine drains": lambda world: restart(world.fleet.proxies["vllm-2"]),
    "the orchestrator": lambda world: restart(world.fleet.orchestrator),
    "the store": lambda world: world.fleet.store.kill(),
    "the engine that is paused": lambda world: crash(world, "vllm-1"),
    "the engine that drains": lambda world: crash(world, "vllm-2"),
    "the orchestrator stopped": stop,
    "the proxy that is locked stopped": stand_still,
    "both engines stopped": silence,
    "the network cut": cut,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_no_engine_is_left_paused(worlds, make_adapter, fault):
    """One engine is paused, with its door LOCKED or changed; the other is being paused, and waits for a request."""

    def goes_on(mode):
        world: Crowd = worlds[mode]
        with world.open_run() as run:
            world.publish(run, 1, make_adapter(1))
            world.wait_serves(1)
            with Traffic(world, workers=1, pause_s=0.05) as traffic, Running(world, "vllm-2") as running:
                handle = world.publish(run, 2, make_adapter(2), until_="stored")
                until(lambda: "vllm-2" in paused(world), "one is being paused")
                if mode == "barrier":
                    until(lambda: row(world, "vllm-1") == "LOCKED", "the other door is locked")
                    assert "vllm-1" in paused(world)
                FAULTS[fault](world)
                running.let_go()
                world.wait_serves(2)
                if not world.fleet.store.is_running():  # it was not needed
                    world.fleet.store.start().wait_ready()
                handle.wait("serving", SOON_S)
            for answer in (a for _, a in traffic.answers if a.status == 200):
                world.prove(answer)
            until(lambda: not paused(world), "every engine goes on")

    try:
        at_once(goes_on, MODES)
    except BaseException:
        for world in worlds.values():
            world.print_logs()
        raise
