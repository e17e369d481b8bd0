"""Whatever dies, and whenever: syncs are decided by the rules, delivered, and every 200 is what it announces."""

import random
import time

import pytest
from testing.engines import KINDS
from testing.waiting import moment, until
from testing.world import ADAPTER, Steps, Traffic, restart

# Short, so that a member that does not answer is dropped within the test's patience.
STAGE_DEADLINE_S = 4.0
# Beyond the deadline: the decision, the flip and this machine's other work.
GRACE_S = 15.0
# Where nobody shall be waited for: whoever waits all the same waits for the deadline, three times as long as is allowed.
LONG_DEADLINE_S = 60.0
AT_ONCE_S = 20.0
# What we promise once everything is up again, on a machine that compiles beside it.
BACK_WITHIN_S = 30.0
VLLM_SLOTS = 8  # of the fake: tests/fakes/fake_vllm.py
SEED = 20261121
# A sync on fakes takes about 100 ms on an idle machine: moments within it, and before and after.
MOMENT_S = 0.25

# What a publishing store passes; tests/integration/store kills it at every point, alone.
STORE_FAULTS = (
    "store.begin.recorded",
    "store.begin.allocated",
    "store.commit.checked",
    "store.commit.sealed",
    "store.commit.leaves_kept",
    "store.commit.published",
    "store.catalog.before_commit:3",
    "store.catalog.after_commit:4",
)


@pytest.fixture(scope="module")
def steps(world, make_adapter):
    world.admin.set_policy(ADAPTER, {"stage_deadline_ms": int(STAGE_DEADLINE_S * 1000), "store_keep": 0})
    with world.open_run() as run:
        steps = Steps(world, run, make_adapter)
        steps.next()
        yield steps


@pytest.fixture
def long_deadline(world):
    """Syncs wait for their members for LONG_DEADLINE_S until the test ends."""
    world.admin.set_policy(ADAPTER, {"stage_deadline_ms": int(LONG_DEADLINE_S * 1000)})
    yield
    world.admin.set_policy(ADAPTER, {"stage_deadline_ms": int(STAGE_DEADLINE_S * 1000), "store_keep": 0})


@pytest.fixture
def hold_loads(world):
    """Both engines keep every load waiting until the block ends, so that a sync stands in STAGING."""

    def set_all(hold: bool) -> None:
        for engine in world.engines.values():
            engine.set(hold_loads=hold)

    yield set_all
    set_all(False)


def running(world):
    """The pool's sync: its state, and why it waits."""
    return next(p for p in world.admin.status()["pools"] if p["adapter"] == ADAPTER).get("running", {})


def service(world, name):
    return getattr(world.fleet, name, None) or world.fleet.proxies[name]


# --- Engines ---


@pytest.mark.parametrize("victim, other", [("sglang", "vllm"), ("vllm", "sglang")])
def test_a_killed_engine_is_not_waited_for_and_is_brought_to_desired_before_it_serves(world, steps, long_deadline, victim, other):
    engine = world.engines[victim]
    with Traffic(world) as traffic:
        until(lambda: traffic.good(victim) > 3, "traffic flows")
        engine.kill()
        until(lambda: world.member(victim)["state"] != "READY", f"{victim} is known to be dead")
        handle = steps.next("stored")
        began = time.monotonic()
        world.wait_serves(steps.number, [other], AT_ONCE_S)
        print(f"{other} served v{steps.number} {time.monotonic() - began:.2f} s after it was stored, {victim} being dead")
        restarted_at = len(traffic.answers)
        engine.start().wait_ready()
        world.wait_serves(steps.number, [victim])
        handle.wait("serving", 30)
        seen = len(traffic.answers)
        until(lambda: len(traffic.answers) > seen + 20, "traffic flows again")
    traffic.check(victim)
    late = [a for m, a in traffic.answers[restarted_at:] if m == victim and a.status == 200]
    assert late and {a.version for a in late} == {steps.number}


@pytest.mark.parametrize("victim, other", [("sglang", "vllm"), ("vllm", "sglang")])
def test_an_engine_that_dies_while_loading_delays_nobody_for_long(world, steps, hold_loads, long_deadline, victim, other):
    engine = world.engines[victim]
    with Traffic(world) as traffic:
        engine.set(hold_loads=True)
        handle = steps.next("stored")
        until(lambda: world.residency(victim, steps.number) == "LOADING", f"{victim} loads")
        engine.kill()
        began = time.monotonic()
        world.wait_serves(steps.number, [other], AT_ONCE_S)
        print(f"{other} served v{steps.number} {time.monotonic() - began:.2f} s after {victim} died")
        engine.start().wait_ready()
        world.wait_serves(steps.number, [victim])
        handle.wait("serving", 30)
    traffic.check(victim)


def test_an_engine_that_forgets_a_version_is_repaired(world, steps):
    steps.next()
    name = next(r["target"] for r in world.member("vllm")["observed"]["rows"] if r["adapter"] == ADAPTER)
    engine = world.engines["vllm"]
    status, _ = engine.call("POST", "/v1/unload_lora_adapter", {"lora_name": name})
    assert status == 200
    until(lambda: name in engine.state()["listed"], "the proxy has loaded it again")
    world.wait_serves(steps.number)


# --- Services, in a sync that stands still ---


@pytest.mark.parametrize("victim", ["store", "orchestrator", *KINDS])
def test_a_service_killed_in_the_middle_of_staging(world, steps, hold_loads, victim):
    hold_loads(True)
    handle = steps.next("stored")
    for member in KINDS:
        until(lambda m=member: world.residency(m, steps.number) in ("LOADING", "FETCHED"), f"{member} has it")
    with Traffic(world) as traffic:
        restart(service(world, victim))
        until(lambda: traffic.good() > 5, "the old version serves on")
        hold_loads(False)
        steps.finish(handle)
    traffic.check(victim)


def test_a_stopped_proxy_delays_the_others_at_most_to_the_stage_deadline(world, steps):
    proxy = world.fleet.proxies["sglang"]
    proxy.suspend()
    try:
        handle = steps.next("stored")
        world.wait_serves(steps.number, ["vllm"], STAGE_DEADLINE_S + GRACE_S)
    finally:
        proxy.resume()
    steps.finish(handle)


def test_a_store_that_was_away_for_longer_than_syncs_last_is_met_when_it_returns(world, steps):
    """Its absence is no member's failure: nobody is excluded for it, and no backoff has grown meanwhile."""
    for proxy in world.fleet.proxies.values():
        proxy.suspend()
    handle = steps.next("stored")
    until(lambda: running(world).get("state") == "SYNC_STATE_STAGING", "the sync has begun")
    world.fleet.store.kill()
    until(lambda: not world.admin.status().get("store_connected", False), "status says that the store is away")
    for proxy in world.fleet.proxies.values():
        proxy.resume()
    until(lambda: running(world).get("detail") == "STAGE_DEADLINE", "a try has met its deadline")
    assert {world.member(m)["state"] for m in KINDS} == {"READY"}
    world.fleet.store.start().wait_ready()
    steps.finish(handle, BACK_WITHIN_S)
    until(lambda: world.admin.status().get("store_connected", False), "status says that the store is back")


def test_slots_that_are_full_under_steady_traffic_delay_nothing(world, steps, long_deadline):
    """What the door counts must be as young as what the engine says, or nothing is ever unloaded."""
    for engine in world.engines.values():
        engine.set(token_delay_s=0.03)
    for _ in range(VLLM_SLOTS + 4):
        steps.next()
    with Traffic(world, workers=3) as traffic:
        until(lambda: traffic.good() > 20, "traffic flows")
        steps.finish(steps.next("stored"), BACK_WITHIN_S)
    traffic.check()
    for engine in world.engines.values():
        engine.set(token_delay_s=0.0)


# --- Services, at the store's fault points and at drawn moments ---


@pytest.mark.parametrize("point", STORE_FAULTS)
def test_the_store_killed_at_a_point_of_a_publish(world, steps, point):
    store = world.fleet.store
    store.environment["LORRY_FAULT"] = point
    try:
        restart(store, kill=False)
        handle = steps.begin()
        store.wait_dead()
    finally:
        store.environment.pop("LORRY_FAULT")
        if not store.is_running():
            store.start().wait_ready()
    steps.finish(handle)


@pytest.mark.parametrize("victims", [("store",), ("orchestrator",), ("sglang",), ("vllm",),
                                     ("store", "orchestrator", "sglang")], ids="+".join)
def test_services_killed_at_drawn_moments(world, steps, victims):
    draw = random.Random(f"{SEED} {victims}")
    with Traffic(world) as traffic:
        for _ in range(4):
            delay = draw.uniform(0, MOMENT_S)
            print(f"seed {SEED} {victims}: killed {delay:.3f} s after publish()")
            handle = steps.begin()
            moment(delay)
            restart(*(service(world, v) for v in victims))
            steps.finish(handle)
        until(lambda: traffic.good() > 5, "traffic flows")
    traffic.check(*victims)


def test_no_version_was_lost_on_the_way(world, steps):
    """Last: every number that was published is stored, once."""
    stored = [v.number for v in world.admin.versions(ADAPTER)]
    assert stored == list(range(steps.number, 0, -1))
