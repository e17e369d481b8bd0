"""Proxies of several hosts that pass on what they fetch: the store sends an image to two of them, whoever dies.

Here they are on one host, so what hosts share is switched off: shared memory, and the host's cache.
"""

import signal
import socket

import grpc
import pytest
from lorry.common.v1 import adapter_pb2
from lorry.store.v1 import fan_out_pb2, store_pb2_grpc
from testing import engines
from testing.engines import free_port
from testing.waiting import until
from testing.world import ADAPTER, World

MEMBERS = tuple(f"e{n}" for n in range(1, 8))


@pytest.fixture
def world(bin_dir, tiny, tmp_path):
    fakes = [engines.fake("vllm", tiny / "model", log_dir=tmp_path, name=m) for m in MEMBERS]
    flags = {"ucx": "false", "host-cache": "off", "relay-listen": "127.0.0.1:0"}
    world = World(bin_dir, tmp_path, *fakes, proxy_flags=flags)
    for proxy in world.fleet.proxies.values():
        proxy.environment["LORRY_FAULT"] = f"@{proxy.folder / 'fault'}"
    with world:
        yield world


def size_of(adapter) -> int:
    return (adapter / "adapter_model.safetensors").stat().st_size


def most_read(world: World) -> str:
    return max(MEMBERS, key=lambda m: world.fleet.proxies[m].sent())


def test_the_store_sends_an_image_to_few_of_seven(world, make_adapter):
    """To two, and to two ahead of the commit (test_read_ahead.py), which may be others."""
    with world.open_run() as run:
        total = sent = 0
        few = []
        for number in (1, 2, 3):
            world.publish(run, number, make_adapter(number))
            world.wait_serves(number)
            size = size_of(make_adapter(number))
            before, sent = sent, world.fleet.store.sent()
            assert 2 * size <= sent - before <= 7 * size
            few.append(sent - before <= (2 if number == 1 else 4) * size)
            total += size
            # What is under way to one that reads ahead when it stops is sent again.
            again = (number - 1) * 2 * size
            everything = sent + sum(world.fleet.proxies[m].sent() for m in MEMBERS)
            assert 7 * total <= everything
            assert not all(few) or everything <= 7 * total + again, "the others by those that fetched before"
        # A relay that a busy machine keeps silent for two seconds is left for the store.
        assert any(few), "whatever the number of engines"
    for member in MEMBERS:
        world.prove(world.doors[member].ask("policy"), version=3)


def test_a_relay_that_dies_costs_its_readers_a_moment(world, make_adapter):
    """Killed with the bytes in its file and before it has placed them: those it sent to its readers stay good."""
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        victim = most_read(world)
        (world.fleet.proxies[victim].folder / "fault").write_text("proxy.fetch.arrived\n")
        handle = world.publish(run, 2, make_adapter(2), "stored")
        assert world.fleet.proxies[victim].wait_dead() == -signal.SIGKILL
        others = [m for m in MEMBERS if m != victim]
        for member in others:
            until(lambda m=member: world.doors[m].ask("policy").version == 2, f"{member} serves it")
            world.prove(world.doors[member].ask("policy"), version=2)
        world.fleet.proxies[victim].start().wait_ready()
        handle.wait("serving", 60)


def join(world: World, run: int, number: int, port: int) -> None:
    """Offers a relay at `port` that knows no ticket."""
    with grpc.insecure_channel(world.fleet.store.addresses["grpc"]) as channel:
        store_pb2_grpc.StoreServiceStub(channel).JoinFanOut(fan_out_pb2.JoinFanOutRequest(
            version=adapter_pb2.VersionRef(adapter=ADAPTER, run=run, number=number), relay=f"relay://127.0.0.1:{port}",
            ticket_key=bytes(32)), timeout=10)


def test_relays_that_are_silent_or_gone_are_left_for_the_store(world, make_adapter):
    """They join first, so that every proxy is sent to one of them or to one that was."""
    with world.open_run() as run, socket.create_server(("127.0.0.1", 0)) as silent:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        for proxy in world.fleet.proxies.values():
            proxy.suspend()
        handle = world.publish(run, 2, make_adapter(2), "stored")
        join(world, run.number, 2, silent.getsockname()[1])
        join(world, run.number, 2, free_port())
        for proxy in world.fleet.proxies.values():
            proxy.resume()
        handle.wait("serving", 60)
        world.wait_serves(2)
        silent.settimeout(0)
        silent.accept()[0].close()  # it was asked; BlockingIOError otherwise
        for member in MEMBERS:
            world.prove(world.doors[member].ask("policy"), version=2)
