"""What is collected of a PeftModel, without a word to the hub that its base model came from."""

from __future__ import annotations

import json
import os
import pathlib
import socket
from collections.abc import Callable
from typing import Any, NoReturn

import huggingface_hub.constants
import peft
import peft.utils.save_and_load
import pytest
import torch
import transformers
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

from lorry import image, norms, state
from lorry.errors import LorryError, Refused


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def dialled(*arguments: Any, **named: Any) -> NoReturn:
        pytest.fail("the hub was asked")

    monkeypatch.setattr(peft.utils.save_and_load, "check_file_exists_on_hf_hub", dialled)
    monkeypatch.setattr(socket, "getaddrinfo", dialled)


def model_on(base: str | pathlib.Path, *modules: str) -> Any:
    """A PeftModel whose base model was loaded from there, as transformers notes it."""
    config = transformers.LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    model = transformers.LlamaForCausalLM(config)
    if isinstance(base, pathlib.Path):
        model.save_pretrained(base)
    model.name_or_path = model.config._name_or_path = str(base)
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=list(modules)))


def test_a_base_model_of_the_hub_is_not_asked_for() -> None:
    tensors, fields = state.collect(model_on("somebody/some-model", "q_proj"), None)
    assert fields["base_model_name_or_path"] == "somebody/some-model"
    assert sorted(name.rpartition(".lora_")[2] for name in tensors) == ["A.weight", "B.weight"]


def test_a_model_of_transformers_with_an_adapter_is_told_to_be_none_of_pefts() -> None:
    config = transformers.LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    model = transformers.LlamaForCausalLM(config)
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(Refused, match="cannot publish a LlamaForCausalLM: pass a PeftModel") as refused:
        state.collect(model, None)
    assert refused.value.reason == "SOURCE_UNKNOWN"


def cut(file: pathlib.Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def replace(file: pathlib.Path) -> None:
    other = file.with_name("new")
    other.write_bytes(file.read_bytes())
    other.replace(file)


def write_as_long(file: pathlib.Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize("change", [cut, replace, write_as_long, pathlib.Path.unlink])
@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_directory_that_is_written_while_it_is_read_is_told_of(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[pathlib.Path], None], name: str
) -> None:
    model_on("somebody/some-model", "q_proj").save_pretrained(tmp_path, save_embedding_layers=False)
    for file in tmp_path.iterdir():
        os.utime(file, (1, 1))  # clocks of file systems tick slowly
    tensors, fields = state.collect(tmp_path, None)
    assert len(tensors) == 2 and fields["r"] == 2
    stamp, stamps = state._stamp, 0

    def stamp_and_change(file: pathlib.Path | int) -> tuple[int, ...]:
        nonlocal stamps
        stamps += 1
        if stamps == 3:  # both were read
            change(tmp_path / name)
        return stamp(file)

    monkeypatch.setattr(state, "_stamp", stamp_and_change)
    with pytest.raises(LorryError, match="was written to while it was read") as changed:
        state.collect(tmp_path, None)
    assert (changed.value.reason, changed.value.code) == ("DIRECTORY_CHANGED", "ABORTED")


def two_adapters() -> Any:
    model = model_on("somebody/some-model", "q_proj")
    model.add_adapter("rl", peft.LoraConfig(r=4, target_modules=["q_proj"]))
    return model


def test_the_adapter_that_computes_is_collected() -> None:
    """PeftModel.active_adapter still says the other one."""
    model = two_adapters()
    torch.nn.init.ones_(next(weight for name, weight in model.named_parameters() if "lora_B.default" in name))
    model.base_model.set_adapter("rl")
    tensors, fields = state.collect(model, None)
    assert fields["r"] == 4 and {min(tensor.shape) for tensor in tensors.values()} == {4}
    assert norms.BaseNorms().relative_norm(model) == 0, "rl's lora_B is zero"


@pytest.mark.parametrize("checkpointed", ["LlamaMLP", "LlamaDecoderLayer"])
def test_modules_whose_activations_are_checkpointed_are_collected(checkpointed: str) -> None:
    """PEFT 0.21 leaves out what is in them: of some modules of the model, or of all."""
    model = model_on("somebody/some-model", "q_proj", "down_proj")
    before = image.build(state.collect(model, None)[0], 0, 1, image.BufferPool())
    apply_activation_checkpointing(model, check_fn=lambda module: type(module).__name__ == checkpointed)
    after = image.build(state.collect(model, None)[0], 0, 1, image.BufferPool())
    assert after.data.tobytes() == before.data.tobytes()


def test_several_adapters_at_once_are_refused() -> None:
    model = two_adapters()
    model.base_model.set_adapter(["default", "rl"])
    with pytest.raises(Refused, match=r"2 adapters are active, \['default', 'rl'\]") as refused:
        state.collect(model, None)
    assert refused.value.reason == "ADAPTER_AMBIGUOUS"
    with pytest.raises(Refused, match="ADAPTER_AMBIGUOUS"):
        norms.BaseNorms().relative_norm(model)


def test_an_adapter_above_one_that_is_merged_is_refused() -> None:
    model = two_adapters()
    model.set_adapter("rl")
    model.merge_adapter(["default"])
    with pytest.raises(Refused, match=r"\['default'\] beside rl is merged into the model.*unmerge_adapter") as refused:
        state.collect(model, None)
    assert refused.value.reason == "ADAPTER_AMBIGUOUS"
    model.unmerge_adapter()
    assert state.collect(model, None)[1]["r"] == 4


def test_what_the_hub_gave_before_is_compared(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cache is laid out as huggingface_hub does it, by commits."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--somebody--another-model"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("a" * 40)
    transformers.LlamaConfig(vocab_size=31).save_pretrained(cached / "snapshots" / ("a" * 40))
    with pytest.raises(Refused, match="from the 31 tokens of somebody/another-model to 32"):
        state.collect(model_on("somebody/another-model", "q_proj"), None)


def test_trained_embeddings_are_there_to_be_refused(tmp_path: pathlib.Path) -> None:
    tensors, _ = state.collect(model_on(tmp_path, "embed_tokens", "lm_head"), None)
    assert {"lora_embedding_A", "lora_embedding_B", "lora_A", "lora_B"} <= {part for name in tensors for part in name.split(".")}


def test_added_tokens_are_refused(tmp_path: pathlib.Path) -> None:
    model = model_on(tmp_path, "q_proj")
    assert len(state.collect(model, None)[0]) == 2
    model.resize_token_embeddings(40)
    with pytest.raises(Refused, match=r"resized, from the 32 tokens of .* to 40") as refused:
        state.collect(model, None)
    assert refused.value.reason == "EMBEDDING_UNSUPPORTED"


TENSORS = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(2, 16)}


def test_pefts_config_is_as_good_as_its_fields(tmp_path: pathlib.Path) -> None:
    config = peft.LoraConfig(r=2, target_modules=["q_proj"])
    _, fields = state.collect(TENSORS, config)
    assert (fields["r"], fields["target_modules"], fields["peft_type"]) == (2, ["q_proj"], "LORA")
    assert json.loads(json.dumps(fields)) == fields == state.collect(TENSORS, config.to_dict())[1]
    model = model_on(tmp_path / "base", "q_proj")
    model.save_pretrained(tmp_path)
    for source in (model, tmp_path):
        assert state.collect(source, peft.LoraConfig(r=2, lora_alpha=3))[1]["lora_alpha"] == 3


@pytest.mark.parametrize("config", ["adapter_config.json", ["q_proj"], 2])
def test_what_is_no_config_is_told(config: Any) -> None:
    with pytest.raises(Refused, match=r"config= is a (str|list|int); give adapter_config.json's fields: config.to_dict\(\)") as refused:
        state.collect(TENSORS, config)
    assert refused.value.reason == "CONFIG_MALFORMED"
