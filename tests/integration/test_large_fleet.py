"""What asks every engine asks many at once: one after the other, a fleet that does not answer would take minutes."""

import concurrent.futures
import contextlib
import json
import socket
import subprocess
import threading

import grpc
import pytest
from lorry.engine.v1 import proxy_pb2, proxy_pb2_grpc
from lorry.sync.v1 import sync_pb2, sync_pb2_grpc
from testing.waiting import DEADLINE_S

ENGINES = 64
AT_ONCE = 32
WHILE_S = 2.5
REQUEST = "request-1"


class Roster(sync_pb2_grpc.SyncServiceServicer):
    """An orchestrator whose engines have these admin addresses."""

    def __init__(self, addresses, state="READY"):
        self._members = [
            sync_pb2.MemberStatus(member=f"engine-{i}", state=state, admin_address=at) for i, at in enumerate(addresses)]

    def GetStatus(self, request, context):
        return sync_pb2.GetStatusResponse(members=self._members)


class Crowd(proxy_pb2_grpc.ProxyServiceServicer):
    """Proxies that answer once AT_ONCE of them are asked, or after a while: a call gives up after three seconds."""

    def __init__(self):
        self._counting = threading.Lock()
        self._inside = 0
        self.together = threading.Event()

    def GetStatus(self, request, context):
        with self._counting:
            self._inside += 1
            if self._inside >= AT_ONCE:
                self.together.set()
        self.together.wait(WHILE_S)
        with self._counting:
            self._inside -= 1
        return proxy_pb2.GetStatusResponse(attached=True)


class Remembers(proxy_pb2_grpc.ProxyServiceServicer):
    def Explain(self, request, context):
        return proxy_pb2.ExplainResponse(request_id=request.request_id, status=200)


@contextlib.contextmanager
def serving(add, servicer):
    """The address of a server of one service."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2 * ENGINES))
    add(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@pytest.fixture
def silent():
    """An address where connections are taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0), backlog=2 * ENGINES) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def ask(bin_dir):
    def run(addresses, *words, state="READY"):
        with serving(sync_pb2_grpc.add_SyncServiceServicer_to_server, Roster(addresses, state)) as orchestrator:
            done = subprocess.run([bin_dir / "lorry", "--json", "--orchestrator", orchestrator, *words], check=False,
                                  capture_output=True, text=True, timeout=DEADLINE_S)
        return [json.loads(line) for line in (done.stdout + done.stderr).splitlines()]

    return run


def test_doctor_asks_many_engines_at_once(ask):
    crowd = Crowd()
    with serving(proxy_pb2_grpc.add_ProxyServiceServicer_to_server, crowd) as proxy:
        found = ask([proxy] * ENGINES, "doctor")
    assert crowd.together.is_set()
    told = {f["what"].split()[0].rstrip(":") for f in found if "is READY" in f["what"] or "did not answer" in f["what"]}
    assert told >= {f"engine-{i}" for i in range(ENGINES)}, "each is told of, also one that this busy machine kept silent"


def test_doctor_names_each_of_a_fleet_that_does_not_answer(ask, silent):
    found = ask([silent] * ENGINES, "doctor")
    bad = {f["what"].split(":")[0] for f in found if silent in f["what"]}
    assert bad == {f"engine-{i}" for i in range(ENGINES)}


def test_doctor_expects_no_answer_of_the_dead(ask, silent):
    found = ask([silent], "doctor", state="DEAD")
    assert not [f for f in found if silent in f["what"]]
    assert [f["grade"] for f in found if f["what"].startswith("engine-0")] == ["warning"]


def test_a_look_that_ends_takes_a_timeout(bin_dir, silent):
    done = subprocess.run([bin_dir / "lorry", "watch", "--once", "--timeout", "500ms", "--orchestrator", silent], check=False,
                          capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 3 and "did not answer" in done.stderr, done


def test_why_finds_who_remembers_among_those_that_do_not_answer(ask, silent):
    with serving(proxy_pb2_grpc.add_ProxyServiceServicer_to_server, Remembers()) as proxy:
        (found,) = ask([silent] * (ENGINES - 1) + [proxy], "why", REQUEST)
    assert found["request_id"] == REQUEST


def test_why_names_those_that_were_silent(ask, silent):
    (found,) = ask([silent] * ENGINES, "why", REQUEST)
    assert found["reason"] == "UNKNOWN_REQUEST"
    assert f"engine-{ENGINES - 1}" in found["message"]
