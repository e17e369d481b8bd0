"""TRL's own GRPOTrainer learns through a door in front of a real vLLM: only its adapter travels, and the reward rises."""

from __future__ import annotations

import runpy
import statistics

import pytest
from lorry import trl as adopted
from testing.engines import ROOT
from testing.world import World

pytestmark = pytest.mark.real
STEPS = 20
# Of 32 completions of eight tokens a step: five steps' mean is within 0.03 of what the model would score, and the run gains 0.4 or more.
GAIN_MIN = 0.25


def test_the_reward_rises(bin_dir, tiny, engine_pair, tmp_path, monkeypatch):
    with World(bin_dir, tmp_path / "fleet", engine_pair["vllm"]) as world:
        addresses = world.fleet.addresses()
        for name, value in {"DOOR": world.fleet.door("vllm"), "MODEL": tiny / "model", "OUTPUT": tmp_path / "out", "STEPS": STEPS,
                            "LORRY_STORE": addresses["store"], "LORRY_ORCHESTRATOR": addresses["orchestrator"]}.items():
            monkeypatch.setenv(name, str(value))
        announced: list[str] = []
        train = adopted.GRPOTrainer.train

        def watched(trainer):
            hear = [lambda reply, *_, **__: announced.append(reply.headers.get("X-Lorry-Version"))]
            trainer.vllm_generation.vllm_client.session.hooks["response"] += hear
            return train(trainer)

        monkeypatch.setattr(adopted.GRPOTrainer, "train", watched)
        told = runpy.run_path(str(ROOT / "examples" / "frameworks" / "use_trl.py"))["trainer"].state.log_history
        rewards = [entry["reward"] for entry in told if "reward" in entry]
        print("rewards", [round(reward, 2) for reward in rewards])
        assert [version for version in announced if version] == [str(step) for step in range(STEPS)]
        assert len(rewards) == STEPS
        assert statistics.mean(rewards[-5:]) > statistics.mean(rewards[:5]) + GAIN_MIN, rewards
