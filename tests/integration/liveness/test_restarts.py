"""Who comes back finds its doors as open as they were: no restart closes what served, and none forgets what hangs."""

import pytest
from testing.engine_api import EngineApi
from testing.fleet import Service
from testing.waiting import until
from testing.world import ADAPTER, Steps, Traffic, restart

# Longer than a new leader's patience with engines that have not come back to it, and shorter than a test's.
BACK_WITHIN_S = 25.0
# Shorter than proxies take to give up a leader that is silent.
SHORT_DEADLINE_MS = 5000
# Members report more often than that, and the leader was stopped for longer.
HEARD_WITHIN_MS = 3000
# Each is in flight for six tokens of half a second, with a pause of as long as one.
CLIENTS = 300
TOKEN_DELAY_S = 0.5
# Slots as an adapter needs them by default: for the last decision, the one before, and the next. Room for every client
# of a door at once, as real engines have.
BUSY = {
    "sglang": ["--max-loaded-loras", "3", "--max-running-requests", "128"],
    "vllm": ["--max-cpu-loras", "3", "--max-num-seqs", "128"],
}
# One unload asks for the engine's adapter to go; after a restart a second one asks what became of the first.
UNLOADS_ASKED = 2


@pytest.mark.parametrize("late", [("vllm-1",), ("sglang-2", "vllm-1", "vllm-2")], ids=len)
def test_a_new_leader_waits_for_the_engines_of_the_last_one(crowd, make_adapter, late):
    """Otherwise it decides a version that they could not load, and their doors, which allow no lag, refuse everybody."""
    world = crowd()
    world.admin.create(ADAPTER, {"max_staleness": 0})
    leader = world.fleet.orchestrator
    with world.open_run() as run, Traffic(world, workers=1) as traffic:
        world.publish(run, 1, make_adapter(1))
        until(lambda: all(traffic.good(m) for m in world.engines), "every door serves")
        began = len(traffic.answers)
        leader.kill()
        handle = world.publish(run, 2, make_adapter(2), until_="stored")
        for member in late:
            world.wires[member].cut()
        leader.start().wait_ready()
        world.wait_ready(*(set(world.engines) - set(late)))
        until(lambda: world.waits_for() == "MEMBERS_ATTACHING", "the new leader waits for them")
        assert world.latest() == (run.number, 1)
        for member in late:
            world.wires[member].heal()
        handle.wait("serving", BACK_WITHIN_S)
        world.wait_serves(2)
    assert not {(m, a.reason) for m, a in traffic.answers[began:] if a.status != 200}


def test_a_new_leader_does_not_wait_for_ever_for_an_engine_that_is_gone(crowd, make_adapter):
    world = crowd("sglang-1", "vllm-1")
    leader = world.fleet.orchestrator
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        leader.kill()
        world.fleet.proxies["vllm-1"].kill()
        handle = world.publish(run, 2, make_adapter(2), until_="stored")
        leader.start().wait_ready()
        handle.wait("serving", BACK_WITHIN_S)
        world.wait_serves(2, ["sglang-1"])


def test_a_leader_that_stood_still_holds_it_against_nobody(crowd, make_adapter):
    """It was stopped in the middle of a sync, for longer than the sync may take, and goes on where it was."""
    world = crowd("sglang-1", "vllm-1", switches={"load_delay_s": 1.0})
    world.admin.create(ADAPTER, {"stage_deadline_ms": SHORT_DEADLINE_MS})
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        handle = world.publish(run, 2, make_adapter(2), until_="stored")
        until(lambda: world.residency("vllm-1", 2) == "LOADING", "the sync is under way")
        world.fleet.orchestrator.suspend()
        for proxy in world.fleet.proxies.values():
            until(lambda p=proxy: "detached" in p.log_tail(), "its leader is silent")
        world.fleet.orchestrator.resume()
        handle.wait("serving")
        assert world.doors["vllm-1"].ask(ADAPTER).headers["x-lorry-epoch"] == "2", "another sync was begun"
        for member in world.engines:
            until(lambda m=member: int(world.member(m)["observed_age_ms"]) < HEARD_WITHIN_MS, f"{member} is not said to be silent")


def test_a_proxy_that_missed_a_decision_serves_on_while_the_store_is_away(crowd, make_adapter):
    """What its engine holds is one behind, as policy allows, and nothing newer can be fetched."""
    world = crowd("sglang-1", "vllm-1")
    proxy = world.fleet.proxies["vllm-1"]
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        proxy.kill()
        handle = world.publish(run, 2, make_adapter(2), until_="stored")
        until(lambda: world.latest() == (run.number, 2), "the other engine's decision")
        world.fleet.store.kill()
        proxy.start().wait_ready()
        until(lambda: world.member("vllm-1").get("state") == "READY", "its proxy is back")
        world.wait_serves(1, ["vllm-1"], BACK_WITHIN_S)
        until(lambda: world.told("vllm-1", 2) == "FETCHING FETCH_UNANSWERED", "status says what it waits for")
        assert world.doors["vllm-1"].ask(ADAPTER).headers["x-lorry-lag"] == "1"
        world.fleet.store.start().wait_ready()
        handle.wait("serving")
        world.wait_serves(2)


def test_an_unload_that_hangs_is_remembered_over_a_restart_of_the_proxy(crowd, make_adapter):
    """The engine serves on, whatever its registry does: so does its door, and the operator hears of it once more.

    The new process asks again, since the first answer may have been lost with the old one, and no oftener."""
    world = crowd("sglang-1", switches={"unload_delay_s": 600})
    world.admin.create(ADAPTER, {"keep": {"versions": 1}, "max_staleness": 0})
    proxy: Service = world.fleet.proxies["sglang-1"]
    engine = EngineApi(world.engines["sglang-1"])
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.publish(run, 2, make_adapter(2))
        until(lambda: world.faults.events("unload"), "the first version is being unloaded")
        restart(proxy)
        world.wait_serves(2, deadline_s=BACK_WITHIN_S)
        until(lambda: world.member("sglang-1").get("state") == "WEDGED", "the journal knows what hangs", BACK_WITHIN_S)
        assert world.serves("sglang-1", 2)
        assert len(world.faults.events("unload")) == UNLOADS_ASKED
        assert len(engine.listed()) == 2
        world.engines["sglang-1"].restart(kill=True)
        until(lambda: world.member("sglang-1").get("state") == "READY", "a new boot is not wedged")
        world.wait_serves(2)


@pytest.mark.parametrize("kill", [False, True], ids=["SIGTERM", "SIGKILL"])
def test_proxies_restart_one_after_another_under_many_clients(crowd, make_adapter, kill):
    """Whoever asks meanwhile gets what is announced or an error, and never hangs; publishing goes on, with few slots."""
    world = crowd(switches={"token_delay_s": TOKEN_DELAY_S}, args=BUSY)
    with world.open_run() as run:
        steps = Steps(world, run, make_adapter)
        steps.next()
        with Traffic(world, workers=CLIENTS // len(world.engines), pause_s=TOKEN_DELAY_S) as traffic:
            until(lambda: all(traffic.good(m) for m in world.engines), "every door serves")
            for proxy in world.fleet.proxies.values():
                published = steps.begin()
                restart(proxy, kill=kill)
                steps.finish(published)
            for _ in range(2):
                steps.finish(steps.begin())
    traffic.check(*world.engines)
    in_use = [e for e in world.faults.events("unload") if e["live"]]
    assert not in_use, "an engine was to unload what was in use"
