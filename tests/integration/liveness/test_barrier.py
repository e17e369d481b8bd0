"""A pool of mode BARRIER: once one door answers with a new version, no request begins on the old one at any door."""

import urllib.error
import urllib.request

import grpc
import pytest
from lorry.engine.v1 import proxy_pb2, proxy_pb2_grpc
from testing.order import check_order
from testing.waiting import DEADLINE_S, until
from testing.workers import Workers
from testing.world import ADAPTER, Traffic, World, restart

BARRIER = {"mode": "barrier", "barrier_deadline_ms": 10_000, "max_staleness": 1}
# Of a sync that nothing holds up, on a machine that compiles beside it.
SOON_S = 25.0


@pytest.fixture
def world(crowd):
    world: World = crowd("sglang-1", "vllm-1", "vllm-2")
    world.admin.create(ADAPTER, BARRIER)
    return world


def test_doors_change_together(world, make_adapter):
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        with Traffic(world, workers=3) as traffic:
            for number in range(2, 8):
                world.publish(run, number, make_adapter(number))
                asked = traffic.good()
                until(lambda asked=asked: traffic.good() > asked + 20, "clients were answered")
        traffic.check()  # held requests were answered too, all of them
        check_order(traffic)
        assert {a.version for _, a in traffic.answers} == set(range(1, 8))


def test_the_checker_sees_doors_that_change_one_by_one(crowd, make_adapter):
    """The same clients under mode ROLLING, where one engine takes its time: what is checked above is no matter of course."""
    world = crowd("sglang-1", "vllm-1")
    world.admin.create(ADAPTER, {"max_staleness": 1, "min_engines": 1, "stage_deadline_ms": 1000})
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        world.wires["vllm-1"].cut()
        with Traffic(world) as traffic:
            world.publish(run, 2, make_adapter(2), until_="stored")
            world.wait_serves(2, ["sglang-1"])
            good = traffic.good("vllm-1")
            until(lambda: traffic.good("vllm-1") > good + 5, "the other door answers with what it has")
        with pytest.raises(AssertionError, match="was begun after v2"):
            check_order(traffic)


def test_a_door_that_nobody_can_ask_holds_the_sync_up_and_no_door(world, make_adapter):
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        world.wires["vllm-2"].cut()
        until(lambda: world.member("vllm-2").get("state") == "LOST", "its session is over")
        with Traffic(world) as traffic:
            handle = world.publish(run, 2, make_adapter(2), until_="stored")
            until(lambda: world.waits_for() == "MEMBER_UNREACHABLE", "the sync says what it waits for")
            asked = traffic.good()
            until(lambda: traffic.good() > asked + 20, "clients are answered meanwhile")
            world.wires["vllm-2"].heal()
            handle.wait("serving", SOON_S)
            world.wait_serves(2)
        traffic.check()
        check_order(traffic)


def test_an_operators_word_ends_the_wait_for_an_engine_that_is_gone(world, make_adapter):
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        world.fleet.proxies["vllm-2"].kill()
        handle = world.publish(run, 2, make_adapter(2), until_="stored")
        until(lambda: world.waits_for() == "MEMBER_UNREACHABLE", "the sync says what it waits for")
        world.admin.mark("vllm-2", "dead")
        handle.wait("serving", SOON_S)
        world.wait_serves(2, ["sglang-1", "vllm-1"])
        # Back again it opens on nothing old, also before it was told anything.
        with Traffic(world, workers=1) as traffic:
            world.fleet.proxies["vllm-2"].start()
            world.wait_serves(2, ["vllm-2"])
        check_order(traffic)


def test_an_engine_that_is_scaled_away_holds_no_barrier_up(world, make_adapter):
    """SIGTERM to its proxy: it drains, says goodbye and leaves the roster. One that dies without a goodbye is waited for."""
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        with Traffic(world, workers=1) as traffic:
            assert world.fleet.proxies["vllm-2"].stop() == 0
            assert world.member("vllm-2") == {}, "it is not on the roster any more"
            epoch = world.publish(run, 2, make_adapter(2)).wait("serving", SOON_S).epoch
            world.wait_serves(2, ["sglang-1", "vllm-1"])
        check_order(traffic)
        world.fleet.proxies["vllm-1"].kill()
        handle = world.publish(run, 3, make_adapter(3), until_="stored")
        until(lambda: world.waits_for() == "MEMBER_UNREACHABLE", "whoever died is waited for")
        world.admin.mark("vllm-1", "dead")
        assert handle.wait("serving", SOON_S).epoch > epoch
        world.wait_serves(3, ["sglang-1"])


def test_an_engine_that_is_drained_leaves_once_and_is_heard_of_no_more(world, make_adapter):
    """`lorry drain`: its proxy runs on, is not ready for whoever balances requests, and dials nobody."""
    proxy = world.fleet.proxies["vllm-2"]
    ready = f"http://{proxy.addresses['admin']}/readyz"
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        with urllib.request.urlopen(ready, timeout=SOON_S) as reply:
            assert reply.status == 200
        with grpc.insecure_channel(proxy.addresses["grpc"]) as channel:
            proxy_pb2_grpc.ProxyServiceStub(channel).Drain(proxy_pb2.DrainRequest(), timeout=SOON_S)
        until(lambda: world.member("vllm-2") == {}, "it left the roster")
        for number in range(2, 6):
            world.publish(run, number, make_adapter(number)).wait("serving", SOON_S)
            world.wait_serves(number, ["sglang-1", "vllm-1"])
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        urllib.request.urlopen(ready, timeout=SOON_S)
    assert b"started again" in refused.value.read()
    assert proxy.log_tail(1000).count("left the fleet") == 1
    assert proxy.stop() == 0
    proxy.start().wait_ready()
    world.wait_serves(5)  # as a newcomer


def test_a_goodbye_waits_for_an_orchestrator_that_is_away(world, make_adapter):
    """As when a node is emptied that has both: nobody hears the goodbye before the orchestrator runs elsewhere."""
    leaves = world.fleet.proxies["vllm-2"]
    leaves.flags["goodbye-wait-ms"] = int(DEADLINE_S * 1000)
    restart(leaves, kill=False)
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        world.fleet.orchestrator.kill()
        until(lambda: "lorry_proxy_attached 0" in leaves.metrics(), "it has no session to say goodbye in")
        with Workers(leaves.stop, join_s=DEADLINE_S):
            until(lambda: "draining" in leaves.log_tail(), "it is told to end")
            world.fleet.orchestrator.start().wait_ready()
        assert leaves.wait_dead() == 0, leaves.log_tail()
        assert "left the fleet" in leaves.log_tail()
        world.publish(run, 2, make_adapter(2)).wait("serving", SOON_S)
        world.wait_serves(2, ["sglang-1", "vllm-1"])


def test_an_engine_that_left_opens_on_nothing_before_it_has_attached_again(world, make_adapter):
    """Behind its back versions are decided, and nobody is there to tell it so when it is started again."""
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        world.fleet.proxies["vllm-2"].stop()
        world.publish(run, 2, make_adapter(2)).wait("serving", SOON_S)
        world.fleet.orchestrator.stop()
        world.fleet.proxies["vllm-2"].start().wait_ready()
        door = world.doors["vllm-2"]
        until(lambda: door.ask(ADAPTER).reason == "CATCHING_UP", "it runs, and waits to be told")
        with Traffic(world, workers=1) as traffic:
            asked = len(traffic.answers)
            until(lambda: len(traffic.answers) > asked + 20, "clients have asked")
            assert traffic.good("vllm-2") == 0
            world.fleet.orchestrator.start().wait_ready()
            world.wait_serves(2)  # as a newcomer
        check_order(traffic)


@pytest.mark.parametrize("victim", ["orchestrator", "sglang-1"])
def test_whoever_is_killed_in_the_middle_the_order_holds(world, make_adapter, victim):
    """Killed again and again while versions are published, so that it dies in every phase of a barrier."""
    service = world.fleet.orchestrator if victim == "orchestrator" else world.fleet.proxies[victim]
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        with Traffic(world) as traffic:
            for number in range(2, 7):
                handle = world.publish(run, number, make_adapter(number), until_="stored")
                until(lambda n=number: world.residency("vllm-1", n) in ("LOADING", "LOADED"), "it is on its way")
                restart(service)
                handle.wait("serving", SOON_S)
                world.wait_serves(number)
        check_order(traffic)
        for _, answer in traffic.answers:
            if answer.status == 200:
                world.prove(answer)
