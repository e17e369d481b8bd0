"""A version that kills engines costs two of each group at most, whatever asked for it, and stops nobody else."""

import lorry
import pytest
from testing.crowd import PAIRS
from testing.faults import DIE_AT_LOAD, DIE_AT_USE
from testing.waiting import until
from testing.world import ADAPTER

# Of one version in one group of like engines: the second death is its verdict.
DEATHS_MAX = 2
WAYS = (DIE_AT_LOAD, DIE_AT_USE)


def given_up(world, handle):
    """Asserts that the version is POISONED, at no more than the price allowed, and what comes next is served by all."""
    with pytest.raises(lorry.SyncFailed) as failed:
        handle.wait("serving", 60)
    assert failed.value.reason == "POISONED", failed.value


def price_was_paid(world, killer):
    for kind in ("sglang", "vllm"):
        assert world.deaths_of(kind, killer) <= DEATHS_MAX, world.faults.events("died")
    assert world.faults.deaths() == world.faults.deaths(killer), "other weights were there when an engine died"


@pytest.mark.parametrize("way", WAYS)
def test_a_killer_is_poisoned_and_the_next_version_is_served_by_all(crowd, make_adapter, way):
    world, killer = crowd(), make_adapter(2)
    world.faults.mark(killer, way)
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        given_up(world, world.publish(run, 2, killer, until_="stored"))
        world.publish(run, 3, make_adapter(3))
        world.wait_serves(3)
        price_was_paid(world, killer)


@pytest.mark.parametrize("way", WAYS)
def test_a_newer_version_does_not_hide_the_killer_before_it(crowd, make_adapter, way):
    """Published while engines die of the one before: innocent, and served."""
    world, killer = crowd(), make_adapter(2)
    world.faults.mark(killer, way)
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.publish(run, 2, killer, until_="stored")
        world.publish(run, 3, make_adapter(3))
        world.wait_serves(3)
        price_was_paid(world, killer)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asks", ["alias", "lease"])
def test_an_alias_or_a_lease_of_a_killer_costs_no_more_than_a_sync(crowd, make_adapter, asks, way):
    world, killer = crowd(), make_adapter(2)
    world.faults.mark(killer, way)
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.admin.rollback(ADAPTER, 1)  # no sync tries it
        handle = world.publish(run, 2, killer, until_="stored")
        if asks == "alias":
            world.admin.set_alias(ADAPTER, "eval", 2)
        else:
            world.admin.lease(f"{ADAPTER}@2", "a-job", 600)
        given_up(world, handle)
        world.admin.rollback(ADAPTER, None)
        world.publish(run, 3, make_adapter(3))
        world.wait_serves(3)
        price_was_paid(world, killer)


@pytest.mark.parametrize("way", WAYS)
def test_newcomers_that_a_decided_version_kills_are_not_all_killed(crowd, make_adapter, way):
    """It was decided by engines that bear it; a group that comes later tries it on one engine first."""
    late = ("sglang-1", "sglang-2", "sglang-3")
    world, killer = crowd(*late, "vllm-1", absent=late), make_adapter(2)
    world.faults.mark(killer, way, on=late)
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.publish(run, 2, killer)
        world.join(*late)
        world.publish(run, 3, make_adapter(3))
        world.wait_serves(3)
        price_was_paid(world, killer)


def test_a_poisoned_version_that_is_asked_for_again_kills_nobody(crowd, make_adapter):
    world, killer = crowd(*PAIRS[1:3]), make_adapter(2)
    world.faults.mark(killer, DIE_AT_LOAD)
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        given_up(world, world.publish(run, 2, killer, until_="stored"))
        died = world.faults.deaths(killer)
        world.admin.set_alias(ADAPTER, "eval", 2)
        world.publish(run, 3, make_adapter(3))
        world.wait_serves(3)
        assert world.faults.deaths(killer) == died


def test_a_lifted_version_is_tried_as_often_as_at_first(crowd, make_adapter):
    """By the same engine: its proxy counts deaths, too, and is told which of them are forgiven."""
    world, killer = crowd("sglang-1"), make_adapter(2)
    world.faults.mark(killer, DIE_AT_LOAD)
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        given_up(world, world.publish(run, 2, killer, until_="stored"))
        world.admin.retry(ADAPTER, 2)
        until(lambda: world.verdict("sglang-1", 2).startswith("POISONED"), "it is given up again")
        assert world.faults.deaths(killer) == 2 * DEATHS_MAX
        world.faults.mark(killer, "")
        world.admin.retry(ADAPTER, 2)
        world.wait_serves(2)
