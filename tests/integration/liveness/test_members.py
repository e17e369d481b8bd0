"""Engines that move, that are away, and versions that look alike."""

import pytest
from testing.waiting import until
from testing.world import ADAPTER

# What waits on a disk for an engine that is away: what is wanted loaded there, the next one, and one that is leaving.
DIRECTORIES_MAX = 4


def test_an_engine_that_moves_to_another_pool_serves_what_that_pool_decided(crowd, make_adapter):
    """Its row's epoch was counted by the pool that it left, which had decided more often."""
    world = crowd("sglang-1", "vllm-1", "vllm-2")
    blue = world.fleet.proxies["vllm-2"]
    blue.stop()
    blue.flags["pool"] = "blue"
    blue.start().wait_ready()
    world.admin.create(ADAPTER, {"pools": [{"pool": "rollout"}, {"pool": "blue"}]})
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.publish(run, 2, make_adapter(2))
        for pinned in (1, 2, 1, 2):
            world.admin.rollback(ADAPTER, pinned, pool="rollout")
            world.wait_serves(pinned, ["sglang-1", "vllm-1"])
        world.admin.rollback(ADAPTER, None, pool="rollout")
        mover = world.fleet.proxies["vllm-1"]
        mover.stop()
        mover.flags["pool"] = "blue"
        mover.start().wait_ready()
        until(lambda: world.member("vllm-1").get("pool") == "blue", "it has moved")
        world.publish(run, 3, make_adapter(3))
        world.wait_serves(3)


@pytest.mark.parametrize("away", ["sglang-1", "vllm-1"])
def test_an_engine_that_is_away_gathers_no_versions(crowd, make_adapter, away):
    world = crowd("sglang-1", "vllm-1")
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.engines[away].kill()
        until(lambda: world.member(away)["state"] != "READY", "it is known to be away")
        other = next(m for m in world.engines if m != away)
        for number in range(2, 12):
            world.publish(run, number, make_adapter(number))
        world.wait_serves(11, [other])
        images = sorted(d.name for d in (world.fleet.image_root / away / "versions").glob("*/*"))
        assert len(images) <= DIRECTORIES_MAX, images
        world.engines[away].start().wait_ready()
        world.wait_serves(11)


def test_equal_bytes_under_one_number_in_two_runs_keep_their_runs(crowd, make_adapter):
    world = crowd("sglang-1", "vllm-1")
    with world.open_run() as run:
        run.publish(make_adapter(1), version=0).wait("serving")
        world.admin.set_alias(ADAPTER, "first", (run.number, 0))
    with world.open_run() as again:
        assert again.number == run.number + 1
        again.publish(make_adapter(1), version=0).wait("serving")
        for member, door in world.doors.items():
            until(lambda d=door: d.ask(f"{ADAPTER}@first").status == 200, f"{member} knows the alias")
            assert door.ask(f"{ADAPTER}@first").run == run.number
            assert door.ask(ADAPTER).run == again.number
            assert door.ask(f"{ADAPTER}@0").run == again.number
