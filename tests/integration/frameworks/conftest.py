"""What tests of frameworks ask for that need nothing more than fake engines behind doors."""

from __future__ import annotations

import pytest
from testing import engines
from testing.engines import SLOT_ARGS
from testing.world import World


@pytest.fixture(scope="module")
def world(request, bin_dir, tiny, tmp_path_factory):
    """A door before one fake of each kind in the module's ENGINES, by default a vLLM."""
    folder, kinds = tmp_path_factory.mktemp("fleet"), getattr(request.module, "ENGINES", ("vllm",))
    with World(bin_dir, folder, *(engines.fake(kind, tiny / "model", log_dir=folder, args=SLOT_ARGS[kind]) for kind in kinds)) as made:
        yield made
