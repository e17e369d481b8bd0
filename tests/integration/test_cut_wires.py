"""What came of an image before the way to the store broke is not sent again."""

import pytest
from testing import early, engines
from testing.forwarder import Forwarder
from testing.raw_publish import RawImage, RawPublisher
from testing.waiting import until
from testing.world import ADAPTER, World

# Four ranges of a transfer, of which two are whole when the wire is cut.
IMAGE_BYTES, CUT_AFTER = 14 << 20, 10 << 20


def test_a_fetch_that_failed_goes_on_with_what_is_missing(bin_dir, tiny, tmp_path, make_adapter):
    folder = early.padded(make_adapter(1), tmp_path / "large", IMAGE_BYTES)
    image = RawImage.of(folder)
    world = World(bin_dir, tmp_path, engines.fake("vllm", tiny / "model", log_dir=tmp_path, name="e1"),
                  proxy_flags={"ucx": "false", "host-cache": "off", "read-ahead": "false"})
    with Forwarder(world.fleet.addresses()["store"]) as wire:
        world.fleet.proxies["e1"].flags["store"] = wire.address
        with world, world.open_run() as run:
            wire.cut_after(CUT_AFTER)
            version = RawPublisher(world.fleet.addresses(), ADAPTER, run.number).publish(1, image)
            world.published[version.digest] = run.number, 1, folder

            def fetched() -> float:
                return world.metric("e1", "lorry_proxy_fetch_bytes_total", transport="grpc")

            until(lambda: wire.refused and world.told("e1", 1) == "FETCHING FETCH_UNANSWERED", "the fetch has failed")
            assert 0 < fetched() < image.image_bytes
            wire.heal()
            world.wait_serves(1)
            assert fetched() == image.image_bytes, "each byte once"
