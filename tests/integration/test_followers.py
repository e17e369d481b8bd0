"""An engine whose ranks run on two nodes, each with a network and a file system of its own: a version is on both before the
engine hears of it, whoever dies or falls silent meanwhile.

The fake's second rank reads every adapter in the other node's file system, and ends the engine where the bytes are not there.
"""

import contextlib
import os
import signal
import subprocess

import pytest
from testing import certificates, engines
from testing.faults import Faults
from testing.nodes import OtherNode
from testing.waiting import until
from testing.world import Steps, World, restart

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network and mount namespaces are root's to make")

LEADER = "leader"


@pytest.fixture
def node():
    with OtherNode() as node:
        yield node


@contextlib.contextmanager
def two_nodes(kind, bin_dir, tiny, tmp_path, node, prepare=lambda world: None):
    """A world whose engine runs here and on `node`; `prepare` may change it before anything is started."""
    faults = Faults(tmp_path, LEADER)
    engine = engines.fake(
        kind, tiny / "model", log_dir=tmp_path, name=LEADER, respawn=True,
        switches={"nodes": str(node.pid), **faults.switches(LEADER)},
    )  # fmt: skip
    world = World(bin_dir, tmp_path, engine)
    world.faults = faults
    world.follower = world.fleet.follower(LEADER, node)
    prepare(world)
    try:
        world.follower.start().wait_ready()
        with world:
            yield world
    finally:
        print(f"===== follower\n{world.follower.log_tail()}")
        world.follower.stop()


@pytest.fixture(params=engines.KINDS)
def world(request, bin_dir, tiny, tmp_path, node):
    with two_nodes(request.param, bin_dir, tiny, tmp_path, node) as world:
        yield world


def versions(root, pid: int = 0) -> set[str]:
    """Names of the directories under an image root, of this node or of the one that the process is on."""
    there = f"/proc/{pid}/root" if pid else ""
    found = subprocess.run(
        ["find", f"{there}{root}/versions", "-mindepth", "2", "-maxdepth", "2", "-printf", "%f\n"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return set(found.stdout.split())


def same_on_both(world, node) -> bool:
    root = world.fleet.image_root / LEADER
    return versions(root) == versions(root, node.pid) != set()


def why(world) -> str:
    residencies = world.member(LEADER).get("observed", {}).get("residencies", [])
    return " ".join(f"{r.get('reason', '')} {r.get('detail', '')}" for r in residencies)


def test_every_version_is_on_both_nodes_before_it_is_loaded(world, node, make_adapter):
    with world.open_run() as run:
        steps = Steps(world, run, make_adapter)
        for _ in range(6):
            steps.finish(steps.begin())
        until(lambda: same_on_both(world, node), "what the leader gave up goes there too")
    assert world.faults.deaths() == 0
    assert 'lorry_proxy_images_total{from="store"} 6' in world.follower.metrics()
    images = sum((make_adapter(number) / "adapter_model.safetensors").stat().st_size for number in range(1, 7))
    assert node.bytes_sent() > images, "they came over the wire"


def test_an_engine_of_two_nodes_without_a_follower_is_not_ready(world):
    world.fleet.proxies[LEADER].flags.pop("followers")
    restart(world.fleet.proxies[LEADER])
    until(lambda: "FOLLOWERS_MISSING" in world.member(LEADER).get("detail", ""), "it says why")
    assert "engine-proxy --follow" in world.member(LEADER)["detail"]


def test_a_load_that_goes_out_too_early_ends_the_engine(world, node, make_adapter):
    """What the tests of this file would see: the leader is told that both nodes share the directory, and they do not."""
    world.fleet.proxies[LEADER].flags |= {"followers": "", "image-dir-shared": "true"}
    restart(world.fleet.proxies[LEADER])
    with world.open_run() as run:
        run.publish(make_adapter(1), version=1).wait("stored")
        until(world.faults.deaths, "the other rank did not find the adapter")


def test_an_engine_that_starts_again_finds_what_the_follower_lost(world, node, make_adapter):
    """A node that was set up anew, as a pod is: its memory is empty, and the leader's is not."""
    with world.open_run() as run:
        steps = Steps(world, run, make_adapter)
        steps.finish(steps.begin())
        world.engines[LEADER].kill()
        world.follower.kill()
        subprocess.run([*node.enter, "sh", "-c", "rm -rf /dev/shm/*"], check=True)
        world.engines[LEADER].start().wait_ready()
        world.follower.start().wait_ready()
        world.wait_serves(1)
        steps.finish(steps.begin())
    assert world.faults.deaths() == 0
    assert same_on_both(world, node)


@pytest.mark.parametrize("how", ("suspended", "killed", "cut"))
def test_a_follower_that_is_away_stops_no_version_that_is_served(world, node, make_adapter, how):
    away = {"suspended": world.follower.suspend, "killed": world.follower.kill, "cut": node.cut}
    back = {"suspended": world.follower.resume, "killed": lambda: world.follower.start().wait_ready(), "cut": node.mend}
    with world.open_run() as run:
        steps = Steps(world, run, make_adapter)
        steps.finish(steps.begin())
        away[how]()
        handle = steps.begin()
        handle.wait("stored")
        until(lambda: "follower" in why(world), "the member says who is missing")
        assert world.serves(LEADER, 1)
        back[how]()
        steps.finish(handle)
    assert world.faults.deaths() == 0


def test_a_leader_that_is_killed_in_its_fetch_goes_on(world, node, make_adapter):
    proxy = world.fleet.proxies[LEADER]
    proxy.environment["LORRY_FAULT"] = f"@{proxy.folder / 'fault'}"
    restart(proxy)
    with world.open_run() as run:
        steps = Steps(world, run, make_adapter)
        steps.finish(steps.begin())
        (proxy.folder / "fault").write_text("proxy.fetch.arrived\n")
        handle = steps.begin()
        assert proxy.wait_dead() == -signal.SIGKILL
        proxy.start().wait_ready()
        steps.finish(handle)
    assert world.faults.deaths() == 0
    until(lambda: same_on_both(world, node), "both have the same")


@pytest.mark.parametrize("flag, reason", (("member", "FOLLOWER_OF_ANOTHER"), ("image-dir", "IMAGE_DIR_DIFFERS")))
def test_a_follower_that_was_set_up_for_something_else_is_told_apart(world, make_adapter, flag, reason):
    world.follower.flags[flag] = "/dev/shm/elsewhere" if flag == "image-dir" else "another"
    world.follower.stop()
    world.follower.start().wait_ready()
    with world.open_run() as run:
        run.publish(make_adapter(1), version=1).wait("stored")
        until(lambda: reason in why(world), f"the member says {reason}")


def test_a_framework_is_told_that_its_directory_reaches_one_node(world, tiny):
    proxy = world.fleet.proxies[LEADER]
    proxy.flags["bindings-root"] = tiny
    restart(proxy)
    world.wait_ready(LEADER)
    route = {"sglang": "/load_lora_adapter", "vllm": "/v1/load_lora_adapter"}[world.engines[LEADER].kind]
    body = {"lora_name": "mine", "lora_path": str(tiny / "adapters" / "v1")}
    status, text = engines.http_json("POST", world.fleet.door(LEADER) + route, body)
    assert 400 <= status < 500 and "several nodes" in str(text), (status, text)


def test_with_certificates_a_leader_knows_its_follower_and_is_known_by_it(bin_dir, tiny, tmp_path, node, make_adapter, monkeypatch):
    ca = certificates.authority(tmp_path / "certificates")
    names = f"IP:127.0.0.1,IP:{node.host_address},IP:{node.address},URI:spiffe://lorry/role/operator"
    cert, key = certificates.signed(ca, "fleet", names)
    for name, file in (("CA", ca), ("CERT", cert), ("KEY", key)):
        monkeypatch.setenv(f"LORRY_{name}_FILE", str(file))

    def encrypt(world):
        for service in (*world.fleet.services(), world.follower):
            service.flags |= {"tls-cert": cert, "tls-key": key, "tls-ca": ca, "tls-client-ca": ca}
            service.flags.pop("insecure-listen-anywhere", None)

    def start_follower_with(**files):
        world.follower.stop()
        world.follower.flags |= files
        world.follower.start().wait_ready()

    foreign = certificates.authority(tmp_path / "foreign")
    theirs = dict(zip(("tls-cert", "tls-key"), certificates.signed(foreign, "follower", f"IP:{node.address}"), strict=True))
    with two_nodes("sglang", bin_dir, tiny, tmp_path, node, encrypt) as world, world.open_run() as run:
        steps = Steps(world, run, make_adapter)
        steps.finish(steps.begin())
        for stranger in (theirs, {"tls-client-ca": foreign}):  # whom the leader does not know; who does not know the leader
            start_follower_with(**stranger)
            handle = steps.begin()
            handle.wait("stored")
            until(lambda: "FOLLOWER_UNANSWERED" in why(world), "neither speaks to the other")
            start_follower_with(**{"tls-cert": cert, "tls-key": key, "tls-client-ca": ca})
            steps.finish(handle)
        assert world.faults.deaths() == 0


# It writes its log and ready file into this test's folder, which is root's; whose directories are is looked at all the same.
ANOTHER_USER = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]


def test_a_follower_may_be_another_user_on_its_node(bin_dir, tiny, tmp_path, node, make_adapter):
    def prepare(world):
        world.follower.enter += ANOTHER_USER

    with two_nodes("vllm", bin_dir, tiny, tmp_path, node, prepare) as world, world.open_run() as run:
        steps = Steps(world, run, make_adapter)
        for _ in range(2):
            steps.finish(steps.begin())
        root = world.fleet.image_root / LEADER
        owners = {os.stat(f"/proc/{node.pid}/root{root}").st_uid, os.stat(root).st_uid}
        assert owners == {65533, os.geteuid()}
        assert world.faults.deaths() == 0


def test_a_follower_whose_directory_is_another_users_says_where_it_keeps_images(bin_dir, tiny, tmp_path, node, make_adapter):
    """It takes one inside, as in a mounted volume: another path than the leader's, where the engine would find nothing."""

    def prepare(world):
        world.follower.enter += ANOTHER_USER
        subprocess.run([*node.enter, "mkdir", "-p", world.follower.flags["image-dir"]], check=True)

    with two_nodes("vllm", bin_dir, tiny, tmp_path, node, prepare) as world, world.open_run() as run:
        run.publish(make_adapter(1), version=1).wait("stored")
        until(lambda: "IMAGE_DIR_DIFFERS" in why(world), "the member says so")
        assert f"{world.fleet.image_root / LEADER}/{LEADER}/versions" in why(world)
        assert world.faults.deaths() == 0
