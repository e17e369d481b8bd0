"""Engines that move, that are away, and versions that look alike."""

import json
import shutil

import pytest
from testing import engines
from testing.fleet import Service
from testing.forwarder import Forwarder
from testing.waiting import until
from testing.world import ADAPTER, World

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


def another_proxy(world, like: str, folder, **flags) -> Service:
    """One more proxy like that member's, with ports, data and images of its own."""
    first = world.fleet.proxies[like]
    own = {f"{name}listen": f"127.0.0.1:{engines.free_port()}" for name in ("", "door-")}
    images = world.fleet.image_root / "another"
    return Service(first.binary, f"another {like}", folder, first.flags | own | {"image-dir": images} | flags)


def test_two_proxies_on_a_host_do_not_share_an_engine(crowd, make_adapter, tmp_path):
    """They would unload each other's versions."""
    world = crowd("sglang-1")
    another = another_proxy(world, "sglang-1", tmp_path / "another", member="sglang-2").start()
    assert another.wait_dead() != 0
    assert "ENGINE_CLAIMED" in another.log_tail()
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))


def test_a_second_proxy_of_a_member_waits_until_the_first_is_gone(crowd, make_adapter, tmp_path):
    """As when a pod is replaced and the old one lingers: the second reaches the engine by another way, so no lock of the host
    keeps it out. The first serves on undisturbed; once it is gone the second takes over, with a journal that knows nothing."""
    world = crowd("sglang-1")
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        way = Forwarder(f"127.0.0.1:{world.engines['sglang-1'].port}")
        another = another_proxy(world, "sglang-1", tmp_path / "another", engine=f"http://{way.address}").start()
        try:
            until(lambda: "ENGINE_CLAIMED" in another.log_tail(), "it is told that it comes too early")
            world.publish(run, 2, make_adapter(2))
            world.wait_serves(2)
            world.fleet.proxies["sglang-1"].kill()
            another.wait_ready()
            world.fleet.proxies["sglang-1"].addresses = another.addresses
            world.doors["sglang-1"] = world._door("sglang-1")
            world.wait_serves(2)
            world.publish(run, 3, make_adapter(3))
            world.wait_serves(3)
        finally:
            another.stop()
            way.close()


def test_an_engine_replaced_by_one_of_another_base_model_serves_nothing(bin_dir, tiny, make_adapter, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(tiny / "model", model)
    config = json.loads((model / "config.json").read_text())
    with World(bin_dir, tmp_path, engines.fake("sglang", model, log_dir=tmp_path)) as world, world.open_run() as run:
        engine = world.engines["sglang"]
        world.publish(run, 1, make_adapter(1))
        for changed in ({"hidden_size": 96, "intermediate_size": 192, "head_dim": 24}, {}):
            engine.kill()
            (model / "config.json").write_text(json.dumps(config | changed))
            engine.start().wait_ready()
            if changed:
                world.wait_refused(1, "BASE_MODEL_MISMATCH")
                assert world.doors["sglang"].ask(ADAPTER).status != 200
                assert engine.state()["listed"] == {}
        world.wait_serves(1)
