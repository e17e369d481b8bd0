"""Engines come to rest before their doors change as policy says, and go on afterwards."""

import concurrent.futures
import contextlib
import signal

import pytest
from testing.crowd import Crowd
from testing.pauses import FLUSHING, MODES, PAUSES, SOON_S, Running, paused, pauses, policy, row
from testing.waiting import until
from testing.workers import at_once
from testing.world import ADAPTER, Traffic

POINTS = ("proxy.pause.before_call", "proxy.pause.called", "proxy.pause.answered")
OTHER = "other"  # an adapter whose requests are not asked about


@pytest.fixture(scope="module")
def alone(bin_dir, tiny, tmp_path_factory):
    """{"sglang": ..., "vllm": ...}: a fleet of one engine each, whose proxy dies where a file says."""
    worlds = {}
    for kind in PAUSES:
        member = f"{kind}-1"
        worlds[kind] = Crowd(bin_dir, tmp_path_factory.mktemp(kind), tiny / "model", member)
        proxy = worlds[kind].fleet.proxies[member]
        proxy.environment["LORRY_FAULT"] = f"@{proxy.folder / 'fault'}"
    with contextlib.ExitStack() as stack:
        at_once(stack.enter_context, worlds.values())
        yield worlds


@pytest.fixture(scope="module")
def world(bin_dir, tiny, tmp_path_factory):
    """An engine of each kind in one fleet."""
    with Crowd(bin_dir, tmp_path_factory.mktemp("pair"), tiny / "model", "sglang-1", "vllm-1") as made:
        yield made


def follow(world: Crowd, rules: dict[str, object], adapter: str = ADAPTER) -> None:
    world.admin.set_policy(adapter, rules, replace=True)


def test_each_engine_pauses_as_policy_says_and_goes_on(alone, make_adapter):
    def goes_on(kind):
        world, member = alone[kind], f"{kind}-1"
        engine = world.engines[member]
        asked = [(mode, quiesce) for mode in MODES for quiesce in PAUSES[kind]]
        follow(world, policy("barrier", asked[0][1]))
        with world.open_run() as run:
            world.publish(run, 1, make_adapter(1))
            world.wait_serves(1)
            assert not pauses(world, member), "nothing was served before"
            with Traffic(world) as traffic:
                until(lambda: traffic.good() > 5, "traffic flows")
                for number, (mode, quiesce) in enumerate(asked, start=2):
                    flush = "always" if quiesce in FLUSHING else "auto"
                    follow(world, policy(mode, quiesce, flush=flush))
                    before = engine.state()
                    world.publish(run, number, make_adapter(number), timeout=SOON_S)
                    world.wait_serves(number)
                    until(lambda: not paused(world), f"{member} goes on")
                    after = engine.state()
                    assert after["pauses"] == [*before["pauses"], quiesce], f"{mode} at {member}"
                    assert after["flushes"] == before["flushes"] + (flush == "always")
            # What an engine aborted was answered as engines do, with what there was.
            assert traffic.good() == len(traffic.answers) and not traffic.broken, traffic.refused()

    at_once(goes_on, alone)


@pytest.mark.parametrize("mode", MODES)
def test_a_drain_waits_for_the_old_version_and_pauses_nobody(world, make_adapter, mode):
    follow(world, policy(mode, "drain"))
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


@pytest.mark.parametrize("mode", MODES)
def test_a_drain_waits_for_nobody_who_named_the_version(world, make_adapter, mode):
    follow(world, policy(mode, "drain"))
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        with Running(world, "sglang-1", f"{ADAPTER}@1") as running:
            world.publish(run, 2, make_adapter(2), timeout=SOON_S)
            world.wait_serves(2)
            assert not running.answers
            running.let_go()
        world.prove(running.answers[0], version=1)


def test_an_engine_without_such_a_pause_serves_nothing_and_says_so(world, make_adapter):
    follow(world, policy("barrier", "keep", min_engines=1))
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1), timeout=SOON_S)
        world.wait_serves(1, ["vllm-1"])
        until(lambda: world.doors["sglang-1"].ask(ADAPTER).status == 409, "its door is told")
        assert world.doors["sglang-1"].ask(ADAPTER).reason == "NOT_LOADED"


def test_a_drain_that_does_not_end_in_time_breaks_the_barrier_off_and_holds_no_decision_up(alone, make_adapter):
    world = alone["vllm"]
    short = {"barrier_deadline_ms": 500, "drain_deadline_ms": 500}
    follow(world, policy("barrier", "drain", **short))
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        with Running(world, "vllm-1") as running:
            handle = world.publish(run, 2, make_adapter(2), until_="stored")
            until(lambda: world.waits_for() == "RETRY_LATER", "the barrier was broken off")
            follow(world, policy("rolling", "drain", **short))
            handle.wait("serving", SOON_S)
            assert not running.answers
            running.let_go()
        world.prove(running.answers[0], version=1)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("rule", ["resume_on_new", "finish_on_old"])
def test_an_engine_that_aborts_ends_what_runs_of_other_adapters_too(alone, make_adapter, rule, stream):
    world, member = alone["sglang"], "sglang-1"
    follow(world, policy("rolling", "abort"))
    follow(world, {"in_flight": rule}, OTHER)
    with world.open_run() as run, world.open_run(OTHER) as other:
        world.publish(run, 1, make_adapter(1))
        world.publish(other, 1, make_adapter(21))
        with Running(world, member, OTHER, stream=stream) as running:
            world.publish(run, 2, make_adapter(2), timeout=SOON_S)
        answer, = running.answers
        last = answer.body[-1] if stream else answer.body
        assert last["meta_info"]["finish_reason"]["type"] == "abort", last
        assert 0 < len(answer.tokens) < 400
        world.prove(answer, version=1)
        running.let_go()
        until(lambda: not paused(world), "the engine goes on")
        world.prove(world.doors[member].ask(OTHER), version=1)


def test_what_does_not_go_together_is_refused(world):
    for wrong in ({"quiesce": "abort"}, {"flush": "always"}, {"quiesce": "drain", "flush": "always"}):
        with pytest.raises(Exception, match="POLICY_INVALID"):
            world.admin.create("wrong", wrong)


def test_a_proxy_that_drains_lets_nobody_wait_and_keeps_no_engine_paused(alone, make_adapter):
    """A pause that waits for one request keeps whatever else its engine has got, and its door holds the rest."""
    world, member = alone["vllm"], "vllm-1"
    proxy, door = world.fleet.proxies[member], world.doors[member]
    follow(world, policy("rolling", "wait"))
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        with Running(world, member, f"{ADAPTER}@1", token_s=1.0) as running, concurrent.futures.ThreadPoolExecutor() as pool:
            world.publish(run, 2, make_adapter(2), until_="stored")
            until(lambda: paused(world), "its engine is to come to rest")
            kept = pool.submit(door.ask, f"{ADAPTER}@1", tokens=1)
            held = pool.submit(door.ask, ADAPTER)
            until(lambda: "lorry_door_live_requests 2" in proxy.metrics(), "the engine has one more")
            until(lambda: "lorry_door_held_requests 1" in proxy.metrics(), "the door holds the other")
            stopped = pool.submit(proxy.stop)
            refused = held.result(SOON_S)
            assert (refused.status, refused.reason, refused.headers["retry-after"]) == (503, "DRAINING", "1")
            world.prove(kept.result(SOON_S), version=1)
            assert running.at_work() == 1, "what the pause waited for still runs"
            running.let_go()
            assert stopped.result(SOON_S) == 0
        world.prove(running.answers[0], version=1)
        assert not paused(world)
        proxy.start().wait_ready()
        world.wait_serves(2)


@pytest.mark.parametrize("point", POINTS)
def test_a_proxy_killed_at(alone, make_adapter, point):
    def lives(kind):
        world, member = alone[kind], f"{kind}-1"
        proxy = world.fleet.proxies[member]
        follow(world, policy("barrier", "in_place" if kind == "sglang" else "keep"))
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

    at_once(lives, alone)
