"""What tests of frameworks ask for that need nothing more than one fake vLLM behind a door."""

from __future__ import annotations

import pytest
from testing import engines
from testing.engines import SLOT_ARGS
from testing.world import World


@pytest.fixture(scope="module")
def world(bin_dir, tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    engine = engines.fake("vllm", tiny / "model", log_dir=folder, args=SLOT_ARGS["vllm"])
    with World(bin_dir, folder, engine) as made:
        yield made
