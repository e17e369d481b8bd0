"""Four engines on one host whose proxies share images: one fetch a version, whoever dies."""

import re
import signal

import pytest
from testing import engines
from testing.fleet import ServiceFailed
from testing.waiting import until
from testing.world import Steps, World

MEMBERS = ("sglang-1", "sglang-2", "vllm-1", "vllm-2")


@pytest.fixture
def world(bin_dir, tiny, tmp_path):
    fakes = [engines.fake(m.partition("-")[0], tiny / "model", log_dir=tmp_path, name=m) for m in MEMBERS]
    world = World(bin_dir, tmp_path, *fakes)
    for proxy in world.fleet.proxies.values():
        proxy.flags["host-cache"] = world.fleet.image_root / ".images"
        proxy.environment["LORRY_FAULT"] = f"@{proxy.folder / 'fault'}"
    with world:
        yield world


def size_of(adapter) -> int:
    return (adapter / "adapter_model.safetensors").stat().st_size


def fetched(world: World, *members: str) -> int:
    """Image bytes that came to the members' proxies from the store."""
    found = [n for m in members for n in re.findall(r"fetch_bytes_total\{[^}]*\} (\S+)", world.fleet.proxies[m].metrics())]
    return sum(int(float(n)) for n in found)


def images(world: World, source: str, *members: str) -> int:
    return sum(int(world.metric(m, "lorry_proxy_images_total", **{"from": source})) for m in members)


def cached(world: World):
    return [p.stat() for p in (world.fleet.image_root / ".images" / "images").iterdir()]


def test_a_version_is_fetched_once_for_all_engines_of_the_host(world, make_adapter):
    with world.open_run() as run:
        total = 0
        for number in (1, 2, 3, 4, 5):
            world.publish(run, number, make_adapter(number))
            world.wait_serves(number)
            total += size_of(make_adapter(number))
            assert fetched(world, *MEMBERS) == total
            assert (images(world, "store", *MEMBERS), images(world, "host", *MEMBERS)) == (number, 3 * number)
    files = [p for p in world.fleet.image_root.glob("*/versions/*/*-v5-*/adapter_model.safetensors")]
    assert len(files) == 4 and len({f.stat().st_ino for f in files}) == 1, "one file of four names, and one in the cache"
    assert files[0].stat().st_nlink == 5
    until(lambda: sum(f.st_nlink == 1 for f in cached(world)) <= 3, "of what nobody uses, files take the next versions")


def test_a_proxy_killed_in_its_fetch_is_followed_by_another(world, make_adapter):
    """It dies with the bytes in its own file and before anybody else may have them."""
    victim, *others = MEMBERS
    with world.open_run() as run:
        steps = Steps(world, run, make_adapter)
        steps.next()
        already = fetched(world, *others)
        for member in others:  # so that the victim is the one that fetches
            world.fleet.proxies[member].suspend()
        proxy = world.fleet.proxies[victim]
        (proxy.folder / "fault").write_text("proxy.fetch.arrived\n")
        handle = steps.begin()
        assert proxy.wait_dead() == -signal.SIGKILL
        claims = world.fleet.image_root / ".images" / "claims"
        assert len(list(claims.iterdir())) == 1 and len(cached(world)) == 1, "begun, and not shared"
        for member in others:
            world.fleet.proxies[member].resume()
        proxy.start().wait_ready()
        steps.finish(handle)
        assert fetched(world, *MEMBERS) == already + size_of(make_adapter(2)), "by one of those that were left"
        assert not list(claims.iterdir())


def test_the_cache_is_empty_once_the_engines_and_their_proxies_have_ended(world, make_adapter):
    with world.open_run() as run:
        for number in (1, 2, 3):
            world.publish(run, number, make_adapter(number))
        world.wait_serves(3)
    for engine in world.engines.values():
        engine.close()
    for member in MEMBERS:
        until(lambda m=member: world.member(m)["state"] != "READY", f"{member} is known to have ended")
        world.fleet.proxies[member].stop()
    assert not cached(world)


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_cache_that_others_may_write_to_is_refused(world, mode):
    proxy = world.fleet.proxies["vllm-1"]
    proxy.stop()
    theirs = world.fleet.image_root / "theirs"
    theirs.mkdir()
    theirs.chmod(mode)
    proxy.flags["host-cache"] = theirs
    with pytest.raises(ServiceFailed, match="--host-cache: .*/theirs may be written to by other users"):
        proxy.start().wait_ready()
