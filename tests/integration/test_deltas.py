"""Where bytes are dear, a proxy is told what has changed since the adapter's last version that lies there.

Here all is on one host, so what hosts share is switched off: shared memory, and the host's cache.
"""

import pytest
from safetensors.numpy import load_file, save_file
from testing import engines
from testing.raw_publish import RawImage, RawPublisher
from testing.world import ADAPTER, World

MEMBERS = ("e1", "e2")


@pytest.fixture
def world(bin_dir, tiny, tmp_path, request):
    fakes = [engines.fake("vllm", tiny / "model", log_dir=tmp_path, name=m) for m in MEMBERS]
    flags = {"ucx": "false", "host-cache": "off", "fetch-deltas": "true", **request.param}
    with World(bin_dir, tmp_path, *fakes, proxy_flags=flags) as world:
        yield world


def a_step_later(folder, to):
    """The adapter after a small step: numbers keep their sign, exponent and high digits."""
    to.mkdir()
    (to / "adapter_config.json").write_bytes((folder / "adapter_config.json").read_bytes())
    tensors = {name: tensor * tensor.dtype.type(1 + 1e-4) for name, tensor in load_file(folder / "adapter_model.safetensors").items()}
    save_file(tensors, to / "adapter_model.safetensors", metadata={"format": "pt"})
    return to


def serve(world, publisher, run, number, folder):
    """The version is published, and every member serves it."""
    version = publisher.publish(number, RawImage.of(folder))
    world.published[version.digest] = run.number, number, folder
    world.wait_serves(number)


def flip_last_bit(path):
    with open(path, "r+b") as image:
        image.seek(-1, 2)
        last = image.read(1)
        image.seek(-1, 2)
        image.write(bytes([last[0] ^ 1]))


def spared(world, member):
    return sum(world.fleet.proxies[member].samples('lorry_proxy_fetch_bytes_total{transport="delta"'))


@pytest.mark.parametrize("world", [{"read-ahead": "false"}, {"read-ahead": "true"}], ids=["fetched", "ahead"], indirect=True)
def test_the_next_version_is_told_by_the_last_one(world, make_adapter, tmp_path):
    first = make_adapter(1)
    with world.open_run() as run:
        publisher = RawPublisher(world.fleet.addresses(), ADAPTER, run.number)
        folder = first
        for number in (1, 2, 3):
            serve(world, publisher, run, number, folder)
            for member in MEMBERS:
                world.prove(world.doors[member].ask("policy"), version=number)
                if number == 1:
                    assert spared(world, member) == 0, "there is nothing to tell it by"
                else:
                    assert spared(world, member) > (number - 1) * RawImage.of(first).image_bytes / 8
            folder = a_step_later(folder, tmp_path / f"step-{number}")


@pytest.mark.parametrize("world", [{"read-ahead": "false"}], indirect=True)
def test_a_version_that_was_changed_on_disk_tells_nothing(world, make_adapter, tmp_path):
    first = make_adapter(1)
    with world.open_run() as run:
        publisher = RawPublisher(world.fleet.addresses(), ADAPTER, run.number)
        serve(world, publisher, run, 1, first)
        for path in (world.fleet.image_root / "e1").glob("versions/*/*/adapter_model.safetensors"):
            flip_last_bit(path)
        second = a_step_later(first, tmp_path / "second")
        serve(world, publisher, run, 2, second)
        for member in MEMBERS:
            world.prove(world.doors[member].ask("policy"), version=2)
        assert spared(world, "e1") == 0
        assert spared(world, "e2") > 0


@pytest.mark.parametrize("world", [{"read-ahead": "false"}], indirect=True)
def test_a_version_that_has_rotted_at_the_store_keeps_no_newer_one_away(world, make_adapter, tmp_path):
    """What the store tells by it does not fit, and the version's own bytes are sound."""
    first = make_adapter(1)
    with world.open_run() as run:
        publisher = RawPublisher(world.fleet.addresses(), ADAPTER, run.number)
        serve(world, publisher, run, 1, first)
        [blob] = [path for path in world.fleet.store.data_dir.rglob("*") if path.is_file() and path.stat().st_size == RawImage.of(first).image_bytes]
        flip_last_bit(blob)
        second = a_step_later(first, tmp_path / "second")
        serve(world, publisher, run, 2, second)
        for member in MEMBERS:
            world.prove(world.doors[member].ask("policy"), version=2)
