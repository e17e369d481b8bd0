"""Bytes that no client of ours would send, at every port that each program listens on: all live, answer, and stay small."""

import contextlib
import os
import random
import re
import socket
import ssl
import struct
import subprocess
import sys

import pytest
from testing import engines
from testing.engines import KINDS, free_port
from testing.fleet import Fleet
from testing.nodes import OtherNode
from testing.sockets import listeners, resident_bytes
from testing.world import ADAPTER, World

VERSION = 1
CONNECTIONS = 100  # at a time, a port; far below every program's limit
TRICKLED_BYTES = 24
# gRPC keeps up to 256 MiB of buffers, an allocator's arenas add to them; round after round of this levels off at 320 MiB.
RESIDENT_BYTES_MAX = 448 << 20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture(scope="module")
def world(bin_dir, tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    pair = [engines.fake(kind, tiny / "model", log_dir=folder) for kind in KINDS]
    with World(bin_dir, folder, *pair, proxy_flags={"relay-listen": "127.0.0.1:0"}) as made:
        with made.open_run() as run:
            made.publish(run, VERSION, tiny / "adapters" / "v1")
        yield made


def frame(kind, flags, stream, payload):
    """One HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def client_hello():
    """The first bytes of a real TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def garbage():
    """Name → bytes, the same in every run."""
    draw = random.Random(20261122)
    settings = frame(4, 0, 0, b"")
    return {
        "nothing": b"",
        "a byte": b"\0",
        "random": draw.randbytes(4096),
        "much random": draw.randbytes(1 << 20),
        "zeroes": bytes(1 << 20),
        "lines": b"\r\n" * 50_000,
        "TLS": client_hello(),
        "half a TLS hello": client_hello()[:100],
        "half a preface": PREFACE[:10],
        "a preface": PREFACE,
        "a preface and garbage": PREFACE + draw.randbytes(4096),
        "settings, then a frame of 16 MiB": PREFACE + settings + frame(0, 0, 1, b"")[:-9] + b"\xff\xff\xff\0\0\0\0\0\1",
        "headers without end": PREFACE + settings + frame(1, 0, 1, draw.randbytes(64)) + frame(9, 0, 1, bytes(16_000)) * 50,
        "10,000 pings": PREFACE + settings + frame(6, 0, 0, bytes(8)) * 10_000,
        "10,000 streams that are reset": PREFACE
        + settings
        + b"".join(frame(1, 4, 2 * i + 1, b"\x82") + frame(3, 0, 2 * i + 1, bytes(4)) for i in range(10_000)),
        "a request without end": b"GET / HTTP/1.1\r\nHost: x\r\n",
        "a head of 1 MiB": b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * (1 << 20) + b"\r\n\r\n",
        "20,000 fields": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 20_000 + b"\r\n",
        "a body of 2^63 bytes": b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 9223372036854775807\r\n\r\n" + bytes(65536),
        "a chunk of 2^64 bytes": b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{",
        "10,000 requests at once": b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n" * 10_000,
        # What UCX's TCP lanes begin with, and a connect packet that is none.
        "UCX": struct.pack("<Q", 0x1CEB00DA) + bytes(64) + draw.randbytes(256),
    }


def connect(port):
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.setblocking(False)
    return sock


def throw(sock, data):
    """Sends what the program takes without waiting for it; it may close whenever it likes."""
    with contextlib.suppress(BlockingIOError, ConnectionError):
        while data:
            data = data[sock.send(data) :]
            with contextlib.suppress(BlockingIOError):
                sock.recv(65536)


def reset(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def told_ports(service):
    """The ports that the program was told to open, and said it opened."""
    return {int(port) for address in service.addresses.values() for port in re.findall(r":(\d+)", address)}


def assert_all_answer(world, pids):
    for service in world.fleet.services():
        assert service.is_running() and service.pid == pids[service.label], f"{service.label}:\n{service.log_tail()}"
        assert "lorry_" in service.metrics()
    assert world.admin.versions(ADAPTER)
    assert world.admin.status()["members"]
    for member in KINDS:
        world.prove(world.doors[member].ask(ADAPTER), version=VERSION)


def test_every_port_survives_garbage(world):
    services = world.fleet.services()
    pids = {service.label: service.pid for service in services}
    assert_all_answer(world, pids)
    with contextlib.ExitStack() as open_ones:
        for service in services:
            for listener in listeners(service.pid):
                throw_all(service, listener.port, open_ones)
        assert_all_answer(world, pids)  # while the slow and the silent are still connected
    assert_all_answer(world, pids)
    for service in services:
        held = resident_bytes(service.pid)
        assert held < RESIDENT_BYTES_MAX, f"{service.label} holds {held >> 20} MiB"


def throw_all(service, port, open_ones):
    """Everything, one connection each: left open, closed in the middle, reset. Then a crowd, and some that trickle."""
    for name, data in garbage().items():
        for end in (open_ones.enter_context, socket.socket.close, reset):
            try:
                sock = connect(port)
            except OSError as error:
                pytest.fail(f"{service.label} no longer accepts on {port} at \"{name}\": {error}\n{service.log_tail()}")
            throw(sock, data)
            end(sock)
    crowd = [open_ones.enter_context(connect(port)) for _ in range(CONNECTIONS)]
    for byte in (PREFACE + bytes(TRICKLED_BYTES))[:TRICKLED_BYTES]:
        for sock in crowd[::4]:
            throw(sock, bytes([byte]))
    assert service.is_running(), service.log_tail()


def test_nothing_listens_that_was_not_asked_for(world):
    for service in world.fleet.services():
        found = listeners(service.pid)
        assert {listener.port for listener in found} == told_ports(service), service.label
        assert all(listener.on_loopback for listener in found), service.label


# Prints the ports that take a connection; what is dropped without a word is none of them.
KNOCK = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), timeout=5).close()
        print(port)
    except OSError:
        pass
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="another network takes root")
def test_nobody_on_another_network_reaches_a_port(world):
    with OtherNode() as node, socket.create_server((node.host_address, 0)) as open_to_all:
        ours = {listener.port for service in world.fleet.services() for listener in listeners(service.pid)}
        assert ours
        ports = map(str, [*ours, open_to_all.getsockname()[1]])
        done = subprocess.run([*node.enter, sys.executable, "-c", KNOCK, node.host_address, *ports], text=True, capture_output=True, check=True)
        assert done.stdout.split() == [str(open_to_all.getsockname()[1])], "the one that shows that knocking works"


def test_every_program_takes_all_the_descriptors_that_it_may_have(bin_dir, tmp_path):
    """A door's clients are as many as its descriptors; shells and service managers give 1,024 unless they are asked for more."""
    fleet = Fleet(bin_dir, tmp_path, {"away": f"http://127.0.0.1:{free_port()}"})
    for service in fleet.services():
        service.enter = ["sh", "-c", 'ulimit -Sn 256 && exec "$@"', "sh"]
    with fleet:
        for service in fleet.services():
            (most,) = service.samples("process_max_fds")
            assert most > 256, service.label
