"""Engines that come to rest before their doors change, and go on afterwards whoever is killed, stopped or cut off meanwhile."""

import contextlib
import signal

import pytest
from testing.crowd import Crowd
from testing.fleet import Service
from testing.waiting import until
from testing.workers import Workers
from testing.world import ADAPTER, Traffic, restart

SOON_S = 40.0  # of a sync that nothing holds up, on a machine that compiles beside it
PAUSES = {"sglang": ("abort", "retract", "in_place"), "vllm": ("abort", "wait", "keep")}
FLUSHING = ("abort", "wait", "keep")
MODES = ("rolling", "barrier")
POINTS = ("proxy.pause.before_call", "proxy.pause.called", "proxy.pause.answered")


def policy(mode: str, quiesce: str, **others: object) -> dict[str, object]:
    in_flight = "abort" if quiesce == "abort" else "finish_on_old"
    return {"mode": mode, "quiesce": quiesce, "in_flight": in_flight, "barrier_deadline_ms": 20_000, **others}


def paused(world: Crowd) -> set[str]:
    """Engines that are paused now; one that starts again is not."""
    found = set()
    for member, engine in world.engines.items():
        try:
            if engine.state()["paused"]:
                found.add(member)
        except OSError:
            pass
    return found


def pauses(world: Crowd, member: str) -> list[str]:
    return world.engines[member].state()["pauses"]


def row(world: Crowd, member: str) -> str:
    rows = world.member(member).get("observed", {}).get("rows", [])
    return rows[0]["mode"].removeprefix("ROW_MODE_") if rows else ""


class Running(Workers):
    """A request that runs at the member's engine, a token each `token_s`, until `let_go`."""

    def __init__(self, world: Crowd, member: str, tokens: int = 400, token_s: float = 0.1) -> None:
        self.answers = []
        self._engine, self._door, self._tokens = world.engines[member], world.doors[member], tokens
        self._engine.set(token_delay_s=token_s)
        super().__init__(self._ask, join_s=60.0)

    def _ask(self) -> None:
        try:
            self.answers.append(self._door.ask(ADAPTER, tokens=self._tokens))
        except OSError:
            pass  # its proxy was killed

    def __enter__(self):
        entered = super().__enter__()
        until(lambda: self._engine.state()["running"] > 0, "it runs")
        return entered

    def let_go(self) -> None:
        with contextlib.suppress(OSError):  # one that starts again has let go
            self._engine.set(token_delay_s=0.0)


@pytest.mark.parametrize("kind", PAUSES)
def test_each_engine_pauses_as_policy_says_and_goes_on(crowd, make_adapter, kind):
    world: Crowd = crowd(f"{kind}-1", f"{kind}-2")
    asked = [(mode, quiesce) for mode in MODES for quiesce in PAUSES[kind]]
    world.admin.create(ADAPTER, policy("barrier", asked[0][1]))
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        assert not any(pauses(world, m) for m in world.engines), "nothing was served before"
        with Traffic(world) as traffic:
            until(lambda: traffic.good() > 5, "traffic flows")
            for number, (mode, quiesce) in enumerate(asked, start=2):
                flush = "always" if quiesce in FLUSHING else "auto"
                world.admin.set_policy(ADAPTER, policy(mode, quiesce, flush=flush))
                before = {m: e.state() for m, e in world.engines.items()}
                world.publish(run, number, make_adapter(number), timeout=SOON_S)
                world.wait_serves(number)
                for member, engine in world.engines.items():
                    until(lambda m=member: m not in paused(world), f"{member} goes on")
                    after = engine.state()
                    assert after["pauses"] == [*before[member]["pauses"], quiesce], f"{mode} at {member}"
                    assert after["flushes"] == before[member]["flushes"] + (flush == "always")
        # What an engine aborted was answered as engines do, with what there was.
        assert traffic.good() == len(traffic.answers) and not traffic.broken, traffic.refused()


@pytest.mark.parametrize("mode", MODES)
def test_a_drain_waits_for_the_old_version_and_pauses_nobody(crowd, make_adapter, mode):
    world: Crowd = crowd("sglang-1", "vllm-1")
    world.admin.create(ADAPTER, policy(mode, "drain"))
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        with Running(world, "sglang-1") as running:
            handle = world.publish(run, 2, make_adapter(2), until_="stored")
            until(lambda: row(world, "sglang-1") == "HELD", "its door holds")
            said = lambda: [r.get("waits_for") for r in world.member("sglang-1")["observed"]["rows"]]  # noqa: E731
            until(lambda: said() == ["requests in flight"], "it says what it waits for")
            assert not running.answers
            if mode == "rolling":
                world.wait_serves(2, ["vllm-1"])  # the others go on
            running.let_go()
            handle.wait("serving", SOON_S)
        world.prove(running.answers[0], version=1)
        world.wait_serves(2)
        assert not any(pauses(world, m) for m in world.engines)


def test_a_drain_that_does_not_end_in_time_breaks_the_barrier_off_and_holds_no_decision_up(crowd, make_adapter):
    world: Crowd = crowd("vllm-1")
    short = {"barrier_deadline_ms": 500, "drain_deadline_ms": 500}
    world.admin.create(ADAPTER, policy("barrier", "drain", **short))
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        with Running(world, "vllm-1") as running:
            handle = world.publish(run, 2, make_adapter(2), until_="stored")
            until(lambda: world.waits_for() == "RETRY_LATER", "the barrier was broken off")
            world.admin.set_policy(ADAPTER, policy("rolling", "drain", **short))
            handle.wait("serving", SOON_S)
            assert not running.answers
            running.let_go()
        world.prove(running.answers[0], version=1)


def test_an_engine_without_such_a_pause_serves_nothing_and_says_so(crowd, make_adapter):
    world: Crowd = crowd("sglang-1", "vllm-1")
    world.admin.create(ADAPTER, policy("barrier", "keep", min_engines=1))
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1), timeout=SOON_S)
        world.wait_serves(1, ["vllm-1"])
        answer = world.doors["sglang-1"].ask(ADAPTER)
        assert (answer.status, answer.reason) == (409, "NOT_LOADED")


def test_what_does_not_go_together_is_refused(crowd):
    world: Crowd = crowd("vllm-1")
    for wrong in ({"quiesce": "abort"}, {"flush": "always"}, {"quiesce": "drain", "flush": "always"}):
        with pytest.raises(Exception, match="POLICY_INVALID"):
            world.admin.create(ADAPTER, wrong)


def kill(service: Service) -> None:
    restart(service)


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


def cut(world: Crowd) -> None:
    for wire in world.wires.values():
        wire.cut()
    until(lambda: not paused(world), "engines go on without the orchestrator")
    for wire in world.wires.values():
        wire.heal()


def end(world: Crowd) -> None:
    """The proxy of a paused engine is taken away: it lets the engine go on first."""
    world.fleet.proxies["vllm-1"].stop()
    assert "vllm-1" not in paused(world)
    world.fleet.proxies["vllm-1"].start().wait_ready()


FAULTS = {
    "the proxy that is locked is taken away": end,
    "the proxy that is locked": lambda world: kill(world.fleet.proxies["vllm-1"]),
    "the proxy whose engine drains": lambda world: kill(world.fleet.proxies["vllm-2"]),
    "the orchestrator": lambda world: kill(world.fleet.orchestrator),
    "the engine that is paused": lambda world: crash(world, "vllm-1"),
    "the engine that drains": lambda world: crash(world, "vllm-2"),
    "the orchestrator stopped": stop,
    "the proxy that is locked stopped": stand_still,
    "the network cut": cut,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", FAULTS)
def test_no_engine_is_left_paused(crowd, make_adapter, mode, fault):
    """One engine is paused, with its door LOCKED or changed; the other is being paused, and waits for a request."""
    world: Crowd = crowd("vllm-1", "vllm-2")
    world.admin.create(ADAPTER, policy(mode, "wait", drain_deadline_ms=60_000))
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        with Running(world, "vllm-2") as running:
            handle = world.publish(run, 2, make_adapter(2), until_="stored")
            until(lambda: "vllm-2" in paused(world), "one is being paused")
            if mode == "barrier":
                until(lambda: row(world, "vllm-1") == "LOCKED", "the other door is locked")
                assert "vllm-1" in paused(world)
            FAULTS[fault](world)
            running.let_go()
            handle.wait("serving", SOON_S)
            world.wait_serves(2)
        until(lambda: not paused(world), "every engine goes on")


@pytest.mark.parametrize("kind, quiesce", [("sglang", "in_place"), ("vllm", "keep")])
@pytest.mark.parametrize("point", POINTS)
def test_a_proxy_killed_at(bin_dir, tiny, tmp_path, make_adapter, kind, quiesce, point):
    member = f"{kind}-1"
    world = Crowd(bin_dir, tmp_path, tiny / "model", member)
    proxy = world.fleet.proxies[member]
    proxy.environment["LORRY_FAULT"] = f"@{proxy.folder / 'fault'}"
    with world:
        world.admin.create(ADAPTER, policy("barrier", quiesce))
        with world.open_run() as run:
            world.publish(run, 1, make_adapter(1))
            world.wait_serves(1)
            (proxy.folder / "fault").write_text(point + "\n")
            handle = world.publish(run, 2, make_adapter(2), until_="stored")
            assert proxy.wait_dead(SOON_S) == -signal.SIGKILL
            proxy.start().wait_ready()
            handle.wait("serving", SOON_S)
            world.wait_serves(2)
            until(lambda: not paused(world), "its engine goes on")
