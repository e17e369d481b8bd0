"""sglang-router as it is, in front of two doors: it takes them for SGLang servers, and what comes back is what the doors announce."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import urllib.request

import pytest
from testing import engines
from testing.doors import DoorClient
from testing.engines import free_port
from testing.waiting import until
from testing.world import ADAPTER, World

READY_S = 120


@pytest.fixture(scope="module")
def world(bin_dir, tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    pair = [engines.fake("sglang", tiny / "model", log_dir=folder, name=f"sglang-{n}") for n in (1, 2)]
    with World(bin_dir, folder, *pair) as made:
        yield made


@pytest.fixture(scope="module")
def router(world, tmp_path_factory):
    """A client of the router, in SGLang's words."""
    port, log = free_port(), tmp_path_factory.mktemp("router") / "log"
    doors = [world.fleet.door(member) for member in world.doors]
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *doors,
             "--policy", "round_robin", "--prometheus-port", str(free_port()), "--prometheus-host", "127.0.0.1"],
            stdout=out, stderr=subprocess.STDOUT, env=os.environ | {"NO_PROXY": "*"})
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(url + "/readiness", timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False

    try:
        until(is_ready, "the router is ready", READY_S)
        yield DoorClient("sglang", url)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        print(pathlib.Path(log).read_text()[-3000:])


def test_versions_are_served_through_it_while_they_are_published(world, router, make_adapter):
    with world.open_run() as run:
        for number in range(1, 6):
            world.publish(run, number, make_adapter(number))
            for stream in (False, True):
                for _ in range(len(world.doors)):
                    world.prove(router.ask(ADAPTER, stream=stream), version=number)
    for member in world.doors:
        assert world.metric(member, "lorry_door_requests_total", code="200") >= 5, "the router used both doors"


def test_the_base_model_is_refused_behind_it_too(router):
    answer = router.ask(None)
    assert answer.status == 400, answer
