"""Whoever was told that something is stored finds it at the orchestrator, however far behind its watch of the store is."""

import contextlib
import threading
import time
from concurrent import futures

import grpc
import lorry
import pytest
from lorry.common.v1 import adapter_pb2
from lorry.sync.v1 import sync_pb2
from testing.waiting import DEADLINE_S, until
from testing.world import ADAPTER, World

# CatchUp::kWaitMaxMs, and what two busy cores add.
BOUND_S = 1.0 + 9.0


class SlowWatch(grpc.GenericRpcHandler):
    """The store as an orchestrator reaches it. While `holds` is set its watch tells nothing, until somebody has asked how far
    the store has come."""

    def __init__(self, target: str) -> None:
        self._store = grpc.insecure_channel(target)
        self._flows = threading.Event()
        self._flows.set()
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        self.looks = 0
        self.stays_behind = False

    def hold(self) -> None:
        self._flows.clear()

    def close(self) -> None:
        self._flows.set()
        self._server.stop(None).wait()
        self._store.close()

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        if call.method.endswith("/Watch"):
            return grpc.unary_stream_rpc_method_handler(lambda *said: self._watch(call.method, *said))
        return grpc.unary_unary_rpc_method_handler(lambda *said: self._ask(call.method, *said))

    def _ask(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            answer: bytes = self._store.unary_unary(method)(request, timeout=DEADLINE_S)
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())
        if method.endswith("/GetRevision"):
            self.looks += 1
            if not self.stays_behind:
                self._flows.set()
        return answer

    def _watch(self, method: str, request: bytes, context: grpc.ServicerContext):
        context.send_initial_metadata(())
        told = self._store.unary_stream(method)(request)
        context.add_callback(told.cancel)
        try:
            for message in told:
                self._flows.wait()
                yield message
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())


@pytest.fixture
def behind(bin_dir, tmp_path):
    """A fleet without engines, and what its orchestrator takes for the store."""
    world = World(bin_dir, tmp_path / "fleet")
    wire = SlowWatch(world.fleet.addresses()["store"])
    world.fleet.orchestrator.flags["store"] = wire.address
    with contextlib.closing(wire), world:
        until(lambda: world.admin.status().get("store_connected"), "the orchestrator has read the store")
        yield world, wire


def refused(world, selector):
    """Why, in how many seconds."""
    began = time.monotonic()
    with pytest.raises(lorry.LorryError) as error:
        world.admin.lease(selector, "a-job", 600)
    return error.value, time.monotonic() - began


def test_what_was_just_stored_is_leased_and_pinned(behind, make_adapter):
    world, wire = behind
    found = set()
    with world.open_run() as run:
        for number in range(1, 21):
            wire.hold()
            world.publish(run, number, make_adapter(number), until_="stored")
            looks = wire.looks
            try:
                if number % 2:
                    assert world.admin.lease(f"{ADAPTER}@{number}", "a-job", 600).number == number
                else:
                    world.admin.rollback(ADAPTER, number)
            except lorry.LorryError as error:
                assert "a second behind" in error.message, "a busy machine brings it later than that"
                continue
            assert wire.looks == looks + 1
            found.add(number % 2)
            if len(found) == 2 and number >= 5:
                break
    assert found == {0, 1}


def test_an_adapter_that_was_just_created_is_watched(behind, make_adapter):
    world, wire = behind
    wire.hold()
    with world.open_run("code") as run:
        world.publish(run, 1, make_adapter(1), until_="stored")
        version = adapter_pb2.VersionRef(adapter="code", number=1)
        states = world.admin._connection.sync.WatchSync(sync_pb2.WatchSyncRequest(version=version), timeout=DEADLINE_S)
        assert [s.state for s in states][-1] == sync_pb2.SYNC_STATE_STORED


def test_a_watch_that_stays_behind_and_a_store_that_is_away_are_named(behind, make_adapter):
    world, wire = behind
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1), until_="stored")
        error, _ = refused(world, f"{ADAPTER}@2")
        assert error.reason == "UNKNOWN_VERSION" and "not heard of" not in error.message, error
        wire.stays_behind = True
        wire.hold()
        world.publish(run, 2, make_adapter(2), until_="stored")
        error, took_s = refused(world, f"{ADAPTER}@2")
        assert error.reason == "UNKNOWN_VERSION" and "a second behind" in error.message, error
        assert took_s < BOUND_S
        world.fleet.store.kill()
        error, took_s = refused(world, f"{ADAPTER}@2")
        assert error.reason == "UNKNOWN_VERSION" and "the store could not be asked" in error.message, error
        assert took_s < BOUND_S
        world.fleet.store.start().wait_ready()
