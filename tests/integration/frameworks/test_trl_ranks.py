"""TRL's own GRPOTrainer with `lorry.trl` on two ranks: whole models, FSDP 2, DeepSpeed ZeRO-3. And what becomes of a rank that fails."""

from __future__ import annotations

import pytest
from testing import trl_ranks

ADAPTER = "trl-policy"
STEPS = 3
# How the base model's weights lie on a rank between two steps.
PARTS = {"ddp": ["Parameter"], "fsdp2": ["DTensor"], "zero3": ["Parameter without"]}


@pytest.fixture
def environment(world, tiny, tmp_path):
    return trl_ranks.settings(world, tiny / "model", tmp_path / "out", STEPS) | {"OMP_NUM_THREADS": "1", "FSDP_ACTIVATION_CHECKPOINTING": "true"}


@pytest.mark.parametrize("kind", PARTS)
def test_each_step_is_one_version_with_the_bytes_of_all_ranks(world, environment, tmp_path, kind):
    run_before = world.latest(ADAPTER)[0]
    first, second = trl_ranks.run_ranks(trl_ranks.train, kind, environment, tmp_path)
    run, newest = world.latest(ADAPTER)
    assert (run, newest) == (run_before + 1, STEPS - 1), "all ranks publish in one run"
    assert first["parts"] == second["parts"] == PARTS[kind]

    assert [heard["step"] for heard in first["generations"]] == list(range(STEPS)) and not second["generations"]
    trl_ranks.judge(first["generations"], tmp_path, ADAPTER, run)
    image = (tmp_path / "v0" / trl_ranks.ADAPTER_FILE).read_bytes()
    for step in range(STEPS):
        sent = first["sent"][step], second["sent"][step]
        assert sum(sent) == len(image) - 8 - int.from_bytes(image[:8], "little"), "nothing is sent twice"
        assert min(sent) > 0.4 * max(sent), "nobody sends for the others"


def test_a_rank_that_fails_is_told_to_all(world, environment, tmp_path):
    """None waits for what never comes, and the trainer can go on."""
    first, second = trl_ranks.run_ranks(trl_ranks.fail, "ddp", environment, tmp_path)
    assert first["no address"] == second["no address"] and "rank 1 of 2: no adapter-store named" in first["no address"]
    for told in (first, second):
        assert told["opened alone"].startswith("ValueError: the run was opened by 1 of the 2 ranks that train")
    assert first["no door"].startswith("ConnectionError")
    assert "another rank could not reach the door: ConnectionError" in second["no door"]
    assert "another rank could not publish v0: LorryError: NO_SPACE: its disk is full" in first["cannot publish"]
    assert second["cannot publish"] == second["cannot send"] == "LorryError: NO_SPACE: its disk is full"
    assert "aborted" in first["cannot send"], "as the rank that failed told the store"
    assert (first["sound again"], second["sound again"]) == ("ok", "ok")
    assert (first["version"], second["version"]) == ("2", "2")
