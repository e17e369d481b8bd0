"""TRL's own GRPOTrainer with `lorry.trl`: every generation is by the adapter of its step, and what engines cannot serve is told before.

The trainer is that of examples/frameworks/use_trl.py, as a user runs it.
"""

from __future__ import annotations

import runpy

import pytest
from lorry import trl as adopted
from peft import IA3Config, LoraConfig, PrefixTuningConfig, get_peft_model
from testing import trl_ranks
from testing.engines import ROOT
from testing.waiting import DEADLINE_S
from transformers import LlamaForCausalLM
from trl import GRPOConfig

EXAMPLE = ROOT / "examples" / "frameworks" / "use_trl.py"
ADAPTER = "trl-policy"
STEPS = 4


@pytest.fixture
def environment(world, tiny, tmp_path):
    return trl_ranks.settings(world, tiny / "model", tmp_path / "out", STEPS)


@pytest.fixture
def witness(tmp_path, monkeypatch):
    made, train = trl_ranks.Witness(tmp_path), adopted.GRPOTrainer.train

    def watched(trainer):
        made.attach(trainer)
        return train(trainer)

    monkeypatch.setattr(adopted.GRPOTrainer, "train", watched)
    return made


def test_every_generation_is_by_the_adapter_of_its_step(world, environment, witness, tmp_path, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    runpy.run_path(str(EXAMPLE))
    run, newest = world.latest(ADAPTER)
    assert [heard["step"] for heard in witness.generations] == list(range(STEPS))
    trl_ranks.judge(witness.generations, tmp_path, ADAPTER, run)
    assert newest == STEPS - 1


def tiny_trainer(tiny, tmp_path, model=None, peft_config=None, strategy="lora_adapter", run=None, **settings):
    # Nobody listens there: whatever is refused is refused before anybody is asked.
    args = GRPOConfig(str(tmp_path), **{"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": "http://127.0.0.1:9", "use_cpu": True,
                                        "bf16": False, "vllm_server_timeout": 0.1, "report_to": "none", **settings})
    data = adopted.grpo_trainer.Dataset.from_dict({"prompt": ["a", "b"]})
    return adopted.GRPOTrainer(model or str(tiny / "model"), len, args, data, peft_config=peft_config, vllm_sync_strategy=strategy,
                               lorry_run=run)


def test_a_second_trainer_of_a_run_counts_on(world, tiny, tmp_path):
    """Its steps begin at 0 again, a number that the run has used."""
    settings = {"vllm_server_base_url": world.fleet.door("vllm"), "vllm_server_timeout": DEADLINE_S}
    with world.open_run("trl-twice") as run:
        for version in (0, 1):
            tiny_trainer(tiny, tmp_path, peft_config=LoraConfig(), run=run, **settings).vllm_generation.sync_weights()
            assert run.state_dict()["version"] == version


REFUSED = {
    "colocate": (LoraConfig(), {"vllm_mode": "colocate"}, 'vllm_mode="server"'),
    "no vLLM": (LoraConfig(), {"use_vllm": False}, "use_vllm=True"),
    "no PEFT": (None, {}, "needs a PEFT model"),
    "IA3": (IA3Config(target_modules=["k_proj"], feedforward_modules=[], task_type="CAUSAL_LM"), {}, 'peft_type=IA3.*"weights"'),
    "prefix": (PrefixTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"), {}, 'peft_type=PREFIX_TUNING.*"weights"'),
    "DoRA": (LoraConfig(use_dora=True), {}, 'use_dora=True.*"weights"'),
    "modules_to_save": (LoraConfig(modules_to_save=["embed_tokens"]), {}, r'modules_to_save=\[.*"weights"'),
    "bias": (LoraConfig(bias="all"), {}, 'bias=\'all\'.*"weights"'),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_supported_is_told_before_anything_is_trained(what, tiny, tmp_path):
    config, settings, words = REFUSED[what]
    with pytest.raises(ValueError, match=words):
        tiny_trainer(tiny, tmp_path, peft_config=config, run=object(), **settings)


def test_wrong_words_are_told(tiny, tmp_path):
    with pytest.raises(ValueError, match='give "weights" or "lora_adapter"'):
        tiny_trainer(tiny, tmp_path, strategy="lora")
    with pytest.raises(ValueError, match="lorry_run="):
        tiny_trainer(tiny, tmp_path, peft_config=LoraConfig())


def test_by_default_trl_is_as_it_is(tiny, tmp_path):
    with pytest.raises(ImportError, match="vLLM is not available"):  # which TRL asks for where it sends weights
        tiny_trainer(tiny, tmp_path, peft_config=LoraConfig(), strategy="weights")
    assert adopted.grpo_trainer.VLLMGeneration is adopted.VLLMGeneration


def test_one_adapter_is_active(tiny):
    model = get_peft_model(LlamaForCausalLM.from_pretrained(tiny / "model"), LoraConfig())
    adopted.check_adapter(model)
    model.add_adapter("other", LoraConfig())
    model.base_model.set_adapter(["default", "other"])
    with pytest.raises(ValueError, match="2 adapters are active"):
        adopted.check_adapter(model)
