"""Proxies of other hosts read an image while its trainer still sends it, and serve nothing of it before it is a version.

Here they are on one host, so what hosts share is switched off: shared memory, and the host's cache. The image's header is
padded to three leaves, which a store has as soon as the upload begins.
"""

import pytest
from testing import early, engines
from testing.early import HEADER_BYTES, LEAF
from testing.raw_publish import RawImage, RawPublisher
from testing.waiting import until
from testing.world import ADAPTER, World

MEMBERS = ("e1", "e2")


@pytest.fixture
def world(bin_dir, tiny, tmp_path):
    fakes = [engines.fake("vllm", tiny / "model", log_dir=tmp_path, name=m) for m in MEMBERS]
    flags = {"ucx": "false", "host-cache": "off"}
    with World(bin_dir, tmp_path, *fakes, store_flags={"ahead-readers": "1"}, proxy_flags=flags) as world:
        yield world


def padded(folder):
    return early.padded(folder, folder.with_name(folder.name + "-padded"))


class Trainer:
    """Publishes version 1 whole, so that the proxies follow, and sends version 2 by hand."""

    def __init__(self, world, run, first):
        self.world, self.run = world, run
        self.publisher = RawPublisher(world.fleet.addresses(), ADAPTER, run.number)
        first = padded(first)
        self.served(first, 1, self.publisher.publish(1, RawImage.of(first)))
        self.sent = world.fleet.store.sent()

    def begin(self, image):
        """Begins version 2; somebody has its header then."""
        begun = early.begin(self.publisher, 2, image, self.world.fleet.store.sent, self.sent)
        assert self.world.fleet.store.sent() == self.sent + HEADER_BYTES, "by one, and whole leaves alone"
        return begun

    def finish(self, begun, image):
        return early.finish(self.publisher, begun, image)

    def served(self, folder, number, version):
        self.world.published[version.digest] = self.run.number, number, folder
        self.world.wait_serves(number)
        for member in MEMBERS:
            self.world.prove(self.world.doors[member].ask("policy"), version=number)


def test_one_of_two_has_the_image_before_its_commit(world, make_adapter):
    folder = padded(make_adapter(2))
    image = RawImage.of(folder)
    with world.open_run() as run:
        trainer = Trainer(world, run, make_adapter(1))
        begun = trainer.begin(image)
        for member in MEMBERS:
            assert world.doors[member].ask("policy").version == 1
        trainer.served(folder, 2, trainer.finish(begun, image))
    ahead = [n for m in MEMBERS for n in world.fleet.proxies[m].samples('lorry_proxy_fetch_bytes_total{transport="ahead"')]
    assert sum(ahead) >= HEADER_BYTES
    sent = world.fleet.store.sent() - trainer.sent
    # A leaf that was under way when the fetch began is sent again.
    assert 2 * image.image_bytes <= sent <= 2 * image.image_bytes + LEAF, "to each once, whatever came ahead"
    assert not any(world.fleet.store.samples("lorry_transfer_errors_total"))


def test_what_came_ahead_of_another_attempt_is_read_again(world, make_adapter):
    given_up, folder = RawImage.of(padded(make_adapter(2))), padded(make_adapter(3))
    image = RawImage.of(folder)
    with world.open_run() as run:
        trainer = Trainer(world, run, make_adapter(1))
        trainer.begin(given_up)
        trainer.served(folder, 2, trainer.finish(trainer.publisher.begin(2, image), image))
    assert not any(world.fleet.store.samples("lorry_transfer_errors_total")), "who leaves has not failed"


def test_a_store_that_dies_in_the_middle_costs_what_came_ahead_and_no_more(world, make_adapter):
    folder = padded(make_adapter(2))
    image = RawImage.of(folder)
    with world.open_run() as run:
        trainer = Trainer(world, run, make_adapter(1))
        trainer.begin(image)
        world.fleet.store.kill()
        world.fleet.store.start().wait_ready()
        trainer.served(folder, 2, trainer.publisher.publish(2, image))


def test_a_proxy_ends_in_order_while_it_reads_ahead(world, make_adapter):
    with world.open_run() as run:
        Trainer(world, run, make_adapter(1)).begin(RawImage.of(padded(make_adapter(2))))
        for member in MEMBERS:
            assert world.fleet.proxies[member].stop() == 0
