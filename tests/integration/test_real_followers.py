"""A real vLLM whose two tensor parallel ranks run on two nodes, each with a network and a memory of its own: every version is
answered by its own weights."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from testing.engines import ROOT, free_port, real
from testing.nodes import OtherNode
from testing.reference import Reference
from testing.world import World

pytestmark = [pytest.mark.real, pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are root's to make")]

VERSIONS = (1, 2, 3)
TOKENS = 8
SERVING_S = 180.0


@pytest.fixture
def node():
    with OtherNode() as node:
        yield node


@pytest.fixture
def engine(tiny, node, tmp_path):
    """Its first rank and its HTTP port are here, the second rank on the other node."""
    model = tiny / "model"
    ranks = ["--tensor-parallel-size", "2", "--nnodes", "2"]
    ranks += ["--master-addr", node.host_address, "--master-port", str(free_port())]
    here = {"VLLM_HOST_IP": node.host_address, "GLOO_SOCKET_IFNAME": node.device}
    there = {"VLLM_HOST_IP": node.address, "GLOO_SOCKET_IFNAME": "up0"}
    engine = real("vllm", model, log_dir=tmp_path, args=[*ranks, "--node-rank", "0"], env=here)
    second = [*node.enter, ROOT / "tools" / "engines" / "run_vllm", model, "1", *ranks, "--node-rank", "1", "--headless"]
    with (tmp_path / "second-rank.log").open("wb") as log:
        process = subprocess.Popen(second, env=os.environ | there, stdout=log, stderr=log, start_new_session=True)
    try:
        yield engine.start().wait_ready()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        engine.close()


def test_each_version_is_answered_by_its_own_weights(bin_dir, tiny, node, engine, make_adapter, tmp_path):
    folders = {version: make_adapter(950 + version) for version in VERSIONS}
    world = World(bin_dir, tmp_path / "fleet", engine)
    world.judge = Reference(tiny / "model", list(folders.values())).judge
    follower = world.fleet.follower(engine.name, node)
    try:
        follower.start().wait_ready()
        with world, world.open_run() as run:
            for version, folder in folders.items():
                world.publish(run, version, folder, timeout=SERVING_S)
                world.prove(world.doors[engine.name].ask("policy", tokens=TOKENS), version=version)
        assert f'lorry_proxy_images_total{{from="store"}} {len(VERSIONS)}' in follower.metrics()
    finally:
        print(f"===== {follower.label}\n{follower.log_tail()}")
        follower.stop()
