"""Pools that follow something else than what is published, and versions that outlive many syncs."""

import pytest
from testing.waiting import until
from testing.world import ADAPTER, World, restart

ROLLOUT, EVAL = ["sglang-1", "vllm-1"], ["vllm-2"]


def why(world, pool: str) -> str:
    """Why the pool's newest version is not its latest, as `lorry status` says it."""
    return next(p for p in world.admin.status()["pools"] if p["pool"] == pool).get("running", {}).get("reason", "")


@pytest.fixture
def mirrored(crowd):
    """mirrored(follows): a fleet whose vllm-2 is a pool `eval` of its own."""

    def make(**follows: str) -> World:
        world = crowd(*ROLLOUT, *EVAL)
        proxy = world.fleet.proxies[EVAL[0]]
        proxy.stop()
        proxy.flags["pool"] = "eval"
        proxy.start().wait_ready()
        world.admin.create(ADAPTER, {"pools": [{"pool": "rollout"}, {"pool": "eval", **follows}]})
        until(lambda: world.member(EVAL[0]).get("pool") == "eval", "it has moved")
        return world

    return make


def test_an_eval_pool_serves_what_rollout_decided(mirrored, make_adapter):
    """Rollbacks too, and while the trainer is gone; over a restart of the orchestrator nothing moves by itself."""
    world = mirrored(other_pool="rollout")
    with world.open_run() as run:
        for number in (1, 2, 3, 4):
            world.publish(run, number, make_adapter(number))
        world.wait_serves(4, ROLLOUT + EVAL)
    world.admin.rollback(ADAPTER, 1, pool="rollout")  # long out of every window
    world.wait_serves(1, ROLLOUT + EVAL)
    restart(world.fleet.orchestrator)
    world.wait_serves(1, ROLLOUT + EVAL)
    assert all(world.doors[m].ask(ADAPTER).version == 1 for m in ROLLOUT + EVAL)
    world.admin.rollback(ADAPTER, None, pool="rollout")
    until(lambda: why(world, "rollout") == "NEXT_VERSION", "v4 was left for a reason; it does not come back by itself")
    with world.open_run() as run:
        world.publish(run, 5, make_adapter(5))
        world.wait_serves(5, ROLLOUT + EVAL)


def test_an_eval_pool_may_stand_still_beside_its_leader(mirrored, make_adapter):
    """A pin of the follower holds it, and the pool that it follows goes on."""
    world = mirrored(other_pool="rollout")
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1, EVAL)
        world.admin.rollback(ADAPTER, 1, pool="eval")
        for number in (2, 3, 4):
            world.publish(run, number, make_adapter(number))
        world.wait_serves(4, ROLLOUT)
        assert world.doors[EVAL[0]].ask(ADAPTER).version == 1
        world.admin.rollback(ADAPTER, None, pool="eval")
        world.wait_serves(4, EVAL)


def test_an_eval_pool_serves_what_an_alias_names(mirrored, make_adapter):
    world = mirrored(alias="best")
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.publish(run, 2, make_adapter(2))
        assert world.doors[EVAL[0]].ask(ADAPTER).status != 200, "nothing was called best yet"
        for best in (1, 2, 1):
            world.admin.set_alias(ADAPTER, "best", best)
            world.wait_serves(best, EVAL)
            assert world.doors[ROLLOUT[0]].ask(ADAPTER).version == 2


def test_an_evaluation_leases_one_version_across_many_syncs(crowd, make_adapter):
    """On a server that rollouts share: the exact version answers all along, and leaves once it was released."""
    world = crowd(*ROLLOUT)
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.admin.lease(f"{ADAPTER}@1", "evaluation", ttl_s=600)
        for number in range(2, 9):
            world.publish(run, number, make_adapter(number))
            for member in ROLLOUT:
                world.prove(world.doors[member].ask(f"{ADAPTER}@1"), version=1)
        assert world.admin.release(f"{ADAPTER}@1", "evaluation") == 1
        until(lambda: all((1, 1) not in world.loaded(m) for m in ROLLOUT), "v1 leaves")
        assert world.doors[ROLLOUT[0]].ask(f"{ADAPTER}@1").status == 409
