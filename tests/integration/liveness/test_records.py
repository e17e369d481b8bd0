"""Records that are lost, or older than what store and engines remember, decide nothing until an operator has adopted the fleet."""

import json
import shutil

import lorry
import pytest
from lorry.sync.v1 import sync_pb2
from testing.engines import free_port
from testing.fleet import Service
from testing.waiting import until
from testing.world import ADAPTER, Traffic

CLUSTER = "lorry"


def is_lost(world, what="RECORDS_LOST"):
    return what in json.dumps(world.admin.status())


def adopt(world, newest=False):
    """As `lorry adopt`, again and again while some engines may still attach."""
    connection = world.admin._connection
    request = sync_pb2.AdoptFleetRequest(cluster=CLUSTER, newest=newest)

    def is_adopted():
        try:
            connection.call(connection.sync.AdoptFleet, request)
        except lorry.LorryError as error:
            if error.reason != "ENGINES_MISSING":
                raise
            return False
        return True

    until(is_adopted, "every engine had the time to attach")


def wipe(service):
    service.kill()
    shutil.rmtree(service.data_dir)
    service.start().wait_ready()


@pytest.fixture
def at_five(crowd, make_adapter):
    """(world, run): two engines that serve v5 in epoch 5, and backups of both databases of epoch 2."""
    world = crowd("sglang-1", "vllm-1")
    services = world.fleet.orchestrator, world.fleet.store
    with world.open_run() as run:
        for number in range(1, 6):
            world.publish(run, number, make_adapter(number))
            if number == 2:
                for service in services:
                    service.stop()
                    shutil.copytree(service.data_dir, backup_of(world, service))
                for service in reversed(services):
                    service.start().wait_ready()
                world.wait_ready(*world.engines)
        assert world.doors["vllm-1"].ask(ADAPTER).headers["x-lorry-epoch"] == "5"
        yield world, run


def backup_of(world, service):
    return world.fleet.folder / f"backup-{service.label}"


def restore(world, service):
    service.kill()
    shutil.rmtree(service.data_dir)
    shutil.copytree(backup_of(world, service), service.data_dir)
    service.start().wait_ready()


@pytest.mark.parametrize("lose", ["wiped", "restored"])
def test_nothing_is_decided_over_lost_records_until_the_fleet_is_adopted(bin_dir, at_five, make_adapter, lose):
    world, run = at_five
    leader = world.fleet.orchestrator
    with Traffic(world, workers=1) as traffic:
        wipe(leader) if lose == "wiped" else restore(world, leader)
        until(lambda: is_lost(world), "status says that the records are lost")
        handle = world.publish(run, 6, make_adapter(6), until_="stored")
        with pytest.raises(TimeoutError):
            handle.wait("serving", 3)
        assert world.latest()[1] in (0, 2), "nothing was decided"
        status, findings = world.doctor(bin_dir)
        assert status == 1 and any(f["grade"] == "bad" and f["what"].startswith("RECORDS_LOST: ") for f in findings), findings
        assert all(world.serves(member, 5) for member in world.engines), "nothing was unloaded"
        world.wait_ready(*world.engines)
        with pytest.raises(lorry.LorryError) as refused:
            adopt(world)
        assert refused.value.reason == "PINS_UNKNOWN", "was v5 pinned, or is v6 next?"
        adopt(world, newest=True)
        world.wait_serves(6)
        handle.wait("serving")
        until(lambda: not is_lost(world), "status says that all is well")
    traffic.check()
    assert int(world.doors["vllm-1"].ask(ADAPTER).headers["x-lorry-epoch"]) > 5
    epochs = {m: [int(a.headers["x-lorry-epoch"]) for n, a in traffic.answers if n == m] for m in world.engines}
    for member, seen in epochs.items():
        assert seen == sorted(seen), f"{member}: {seen}"


@pytest.mark.parametrize("lose", ["wiped", "restored"])
def test_an_operator_in_haste_sets_no_door_back(at_five, lose):
    """Nothing is adopted before the engines were there that alone know what was decided."""
    world, _ = at_five
    leader = world.fleet.orchestrator
    for proxy in world.fleet.proxies.values():
        proxy.kill()
    wipe(leader) if lose == "wiped" else restore(world, leader)
    until(lambda: is_lost(world), "status says that the records are lost")
    with pytest.raises(lorry.LorryError) as refused:
        world.admin._connection.call(world.admin._connection.sync.AdoptFleet, sync_pb2.AdoptFleetRequest(cluster=CLUSTER, newest=True))
    assert refused.value.reason == "ENGINES_MISSING"
    for proxy in world.fleet.proxies.values():
        proxy.start()
    adopt(world)
    world.wait_ready(*world.engines)
    assert all(world.serves(member, 5) for member in world.engines)


def test_what_is_served_is_what_is_announced_after_records_were_lost(at_five, make_adapter):
    """"Serving" is said of a version only where a door answers with it."""
    world, run = at_five
    wipe(world.fleet.orchestrator)
    until(lambda: is_lost(world), "status says that the records are lost")
    world.wait_ready(*world.engines)
    adopt(world)
    for number in range(6, 9):
        world.publish(run, number, make_adapter(number))
        for member in world.engines:
            assert world.serves(member, number), f"v{number} is announced as served by {member}"


def test_lost_records_do_not_settle_by_themselves_while_no_engine_is_there_to_object(at_five):
    world, _ = at_five
    for proxy in world.fleet.proxies.values():
        proxy.kill()
    wipe(world.fleet.orchestrator)
    until(lambda: is_lost(world), "status says that the records are lost")
    world.fleet.orchestrator.kill()
    world.fleet.orchestrator.start().wait_ready()
    until(lambda: is_lost(world), "another start has not settled it")


def test_a_pin_that_was_lost_with_the_records_is_not_overrun(at_five):
    """Its engines serve the pinned version, nobody remembers why, and an operator is asked before anything newer is."""
    world, run = at_five
    world.admin.rollback(ADAPTER, 2)
    world.wait_serves(2)
    for proxy in world.fleet.proxies.values():
        proxy.kill()
    wipe(world.fleet.orchestrator)
    until(lambda: is_lost(world), "status says that the records are lost")
    for proxy in world.fleet.proxies.values():
        proxy.start()
    world.wait_serves(2)
    world.wait_ready(*world.engines)
    with pytest.raises(lorry.LorryError) as refused:
        adopt(world)
    assert refused.value.reason == "PINS_UNKNOWN"
    world.admin.rollback(ADAPTER, 2)
    adopt(world)
    world.wait_ready(*world.engines)
    assert world.latest() == (run.number, 2), "what doors serve is what was decided"


def test_an_orchestrator_of_another_name_begins_over_a_store_that_has_versions(at_five):
    """Nobody has ever heard of it, so nothing of it can have been lost."""
    world, _ = at_five
    leader = world.fleet.orchestrator
    flags = {"listen": f"127.0.0.1:{free_port()}", "store": leader.flags["store"], "cluster": "another"}
    other = Service(leader.binary, "another", world.fleet.folder / "another", flags)
    try:
        other.start().wait_ready()
        with lorry.Admin(store=leader.flags["store"], orchestrator=other.addresses["grpc"]) as admin:
            pools = until(lambda: admin.status().get("pools"), "it has read the store")
            assert "RECORDS_LOST" not in json.dumps(pools)
            assert pools[0]["running"]["reason"] in ("HOLD_PENDING", "MEMBERS_ATTACHING", "TOO_FEW_ENGINES")
    finally:
        other.stop()


@pytest.mark.parametrize("lose", ["wiped", "restored"])
def test_a_store_that_has_forgotten_takes_nothing_away(at_five, make_adapter, lose):
    world, run = at_five
    store = world.fleet.store
    whole = world.fleet.folder / "whole"
    with Traffic(world, workers=1) as traffic:
        store.kill()
        shutil.copytree(store.data_dir, whole)
        shutil.rmtree(store.data_dir)
        if lose == "restored":
            shutil.copytree(backup_of(world, store), store.data_dir)
        store.start().wait_ready()
        until(lambda: is_lost(world, "STORE_LOST"), "status says that the store has forgotten")
        assert all(world.serves(member, 5) for member in world.engines), "nothing was unloaded"
        store.kill()
        shutil.rmtree(store.data_dir)
        shutil.copytree(whole, store.data_dir)
        store.start().wait_ready()
        until(lambda: not is_lost(world, "STORE_LOST"), "what was put back is believed")
        world.publish(run, 6, make_adapter(6))
        world.wait_serves(6)
    traffic.check()


def test_a_store_that_was_wiped_for_good_is_adopted(at_five, make_adapter):
    world, _ = at_five
    wipe(world.fleet.store)
    until(lambda: is_lost(world, "STORE_LOST"), "status says that the store has forgotten")
    with world.open_run() as run:
        handle = world.publish(run, 1, make_adapter(7), until_="stored")
        until(lambda: world.admin.status()["pools"][0].get("newest"), "the orchestrator has heard of it")
        adopt(world, newest=True)
        handle.wait("serving")
        world.wait_serves(1)
