"""What is counted while nobody watches: how syncs ended and how long their phases took, and what an adapter was asked for."""

import re
import time

import pytest
from testing.engines import KINDS
from testing.waiting import until
from testing.world import ADAPTER, Steps

STAGE_DEADLINE_S = 3.0


@pytest.fixture(scope="module")
def steps(world, make_adapter):
    with world.open_run() as run:
        yield Steps(world, run, make_adapter)


def counted(world) -> dict[str, int]:
    """Of each result and phase, by its label."""
    text = world.fleet.orchestrator.metrics()
    found = re.findall(r'^lorry_sync_(?:total|phase_seconds_count)\{(?:result|phase)="(\w+)"\} (\d+)', text, re.M)
    return {label: int(count) for label, count in found}


def test_syncs_that_nobody_watches_are_counted_and_measured(world, steps):
    began = time.time()
    for number in (1, 2, 3):
        steps.next("stored")
        world.wait_serves(number)
    until(lambda: counted(world).get("activate") == 3, "the third is active")
    got = counted(world)
    assert {k: got[k] for k in ("active", "stage", "commit", "activate")} == dict.fromkeys(
        ("active", "stage", "commit", "activate"), 3
    )
    assert (got["aborted"], got["superseded"], got["failed"]) == (0, 0, 0)
    store = world.fleet.store
    assert store.samples("lorry_store_upload_seconds_count") == [3.0]
    assert 0 < store.samples("lorry_store_upload_seconds_sum")[0] < time.time() - began
    assert began < store.samples("lorry_store_last_stored_timestamp_seconds")[0] < time.time()


def test_a_version_that_was_overtaken_and_a_try_that_was_aborted(world, steps):
    world.admin.set_policy(ADAPTER, {"stage_deadline_ms": int(STAGE_DEADLINE_S * 1000)})
    for engine in world.engines.values():
        engine.set(hold_loads=True)
    steps.next("stored")
    for member in KINDS:
        until(lambda m=member: world.residency(m, steps.number) == "LOADING", f"{member} loads v4")
    steps.next("stored")  # waits behind it
    until(lambda: newest(world) == steps.number, "v5 waits")
    steps.next("stored")  # and is overtaken
    until(lambda: counted(world)["superseded"] >= 1, "v5 was overtaken")
    until(lambda: counted(world)["aborted"] >= 1, "a try met its deadline")
    for engine in world.engines.values():
        engine.set(hold_loads=False)
    world.wait_serves(steps.number)
    assert counted(world)["failed"] == 0


def newest(world) -> int:
    """Number of the newest stored version that the orchestrator knows."""
    return next((int(p["newest"]["number"]) for p in world.admin.status()["pools"] if p["adapter"] == ADAPTER), 0)


def test_what_is_counted_of_an_adapter_ends_with_it(world, make_adapter):
    name = "short-lived"
    with world.open_run(name) as run:
        world.publish(run, 1, make_adapter(1))
    member = KINDS[0]
    for _ in range(3):
        assert world.doors[member].ask(name).status == 200
    assert world.metric(member, "lorry_door_adapter_requests_total", adapter=name) >= 3, "those that waited for it to be served too"
    assert world.metric(member, "lorry_door_adapter_reply_bytes_total", adapter=name) > 100
    orchestrator = world.fleet.orchestrator
    until(lambda: f'serving_timestamp_seconds{{adapter="{name}"' in orchestrator.metrics(), "it is served everywhere")
    world.admin.archive(name)
    for service in (world.fleet.proxies[member], orchestrator):
        until(lambda s=service: f'adapter="{name}"' not in s.metrics(), "nothing is said of it any more")
        assert f'adapter="{ADAPTER}"' in service.metrics()
