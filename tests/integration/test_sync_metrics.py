"""What the orchestrator counts while nobody watches: how syncs ended, and how long their phases took."""

import re

import pytest
from testing.engines import KINDS
from testing.waiting import until
from testing.world import ADAPTER, Steps

STAGE_DEADLINE_S = 3.0


@pytest.fixture(scope="module")
def steps(world, make_adapter):
    world.admin.set_policy(ADAPTER, {"stage_deadline_ms": int(STAGE_DEADLINE_S * 1000)})
    with world.open_run() as run:
        yield Steps(world, run, make_adapter)


def counted(world) -> dict[str, int]:
    """Of each result and phase, by its label."""
    text = world.fleet.orchestrator.metrics()
    found = re.findall(r'^lorry_sync_(?:total|phase_seconds_count)\{(?:result|phase)="(\w+)"\} (\d+)', text, re.M)
    return {label: int(count) for label, count in found}


def test_syncs_that_nobody_watches_are_counted_and_measured(world, steps):
    for number in (1, 2, 3):
        steps.next("stored")
        world.wait_serves(number)
    until(lambda: counted(world).get("activate") == 3, "the third is active")
    got = counted(world)
    assert {k: got[k] for k in ("active", "stage", "commit", "activate")} == dict.fromkeys(
        ("active", "stage", "commit", "activate"), 3
    )
    assert (got["aborted"], got["superseded"], got["failed"]) == (0, 0, 0)


def test_a_version_that_was_overtaken_and_a_try_that_was_aborted(world, steps):
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
