"""A version that engines refuse is given up in the engine's words, and delays neither another adapter nor the next one."""

import lorry
import pytest
from testing.waiting import until
from testing.world import ADAPTER

OTHER = "other"
WORDS = "lora_A of layer 0 is no matrix"
# Far below the patience of a sync: whoever waits for another adapter's version waits at least that long.
STAGE_DEADLINE_S = 60.0
AT_ONCE_S = 30.0
SKIPS = ("SKIP_MODE_ALLOWED", "SKIP_MODE_NEVER")


@pytest.fixture
def pair(crowd, make_adapter):
    """A world with two adapters, each with its first version, as (world, run, run of the other)."""
    world = crowd()
    for adapter in (ADAPTER, OTHER):
        world.admin.create(adapter, {"stage_deadline_ms": int(STAGE_DEADLINE_S * 1000)})
    with world.open_run() as run, world.open_run(OTHER) as other:
        world.publish(run, 1, make_adapter(1))
        world.publish(other, 1, make_adapter(11))
        yield world, run, other


def refused_in_words(handle):
    with pytest.raises(lorry.SyncFailed) as failed:
        handle.wait("serving", STAGE_DEADLINE_S)
    assert (failed.value.reason, WORDS in str(failed.value)) == ("REFUSED", True), failed.value


def serves_all(world, number, adapter=ADAPTER):
    for member in world.engines:
        until(lambda m=member: world.serves(m, number, adapter), f"{member} serves {adapter} v{number}")


@pytest.mark.parametrize("skip", SKIPS)
def test_a_version_that_every_engine_refuses_is_refused_in_its_words(pair, make_adapter, skip):
    world, run, other = pair
    world.admin.set_policy(ADAPTER, {"skip": skip})
    world.faults.mark(make_adapter(2), WORDS)
    handle = world.publish(run, 2, make_adapter(2), until_="stored")
    for number in range(2, 5):
        world.publish(other, number, make_adapter(10 + number), timeout=AT_ONCE_S)
        assert {world.member(m)["state"] for m in world.engines} == {"READY"}, "no engine is to blame"
    refused_in_words(handle)
    world.publish(run, 3, make_adapter(3), timeout=AT_ONCE_S)
    serves_all(world, 3)
    serves_all(world, 4, OTHER)
    world.admin.delete(ADAPTER, 2)


@pytest.mark.parametrize("skip", SKIPS)
def test_a_version_that_one_engine_refuses_is_served_by_the_others(pair, make_adapter, skip):
    world, run, other = pair
    world.admin.set_policy(ADAPTER, {"skip": skip})
    world.faults.mark(make_adapter(2), WORDS, on=["sglang-1"])
    served = world.publish(run, 2, make_adapter(2), timeout=AT_ONCE_S)
    assert served.status.members["sglang-2"] == "ACTIVE"
    world.publish(other, 2, make_adapter(12), timeout=AT_ONCE_S)
    world.wait_serves(2, ["sglang-2", "vllm-1", "vllm-2"])
    assert world.serves("sglang-1", 1), "it lags by one, as policy allows"
    world.publish(run, 3, make_adapter(3), timeout=AT_ONCE_S)
    serves_all(world, 3)
    serves_all(world, 2, OTHER)


def test_a_version_that_one_kind_refuses_is_served_by_the_other(pair, make_adapter):
    world, run, other = pair
    world.faults.mark(make_adapter(2), WORDS, on=["sglang-1", "sglang-2"])
    world.publish(run, 2, make_adapter(2), timeout=AT_ONCE_S)
    world.publish(other, 2, make_adapter(12), timeout=AT_ONCE_S)
    world.wait_serves(2, ["vllm-1", "vllm-2"])
    world.publish(run, 3, make_adapter(3), timeout=AT_ONCE_S)
    serves_all(world, 3)
    serves_all(world, 2, OTHER)


@pytest.mark.parametrize("skip", SKIPS)
def test_a_lone_engine_that_refuses_a_version_serves_the_next(crowd, make_adapter, skip):
    world = crowd("sglang-1")
    world.admin.create(ADAPTER, {"skip": skip})
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.faults.mark(make_adapter(2), WORDS)
        handle = world.publish(run, 2, make_adapter(2), until_="stored")
        refused_in_words(handle)
        world.publish(run, 3, make_adapter(3), timeout=AT_ONCE_S)
        world.wait_serves(3)
