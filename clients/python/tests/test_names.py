"""Tensor names: the vectors that lib/peft shares, and that what is taken apart computes the same."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from lorry import base_model, state
from lorry.errors import Refused
from lorry.image import BufferPool, Shard, build
from lorry.names import plan

VECTORS = json.loads((pathlib.Path(__file__).parents[3] / "tests/unit/peft/testdata/names.json").read_text())
LLAMA = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 64}
LAYER = "base_model.model.model.layers.0."


@pytest.mark.parametrize("vector", VECTORS, ids=[v["why"] for v in VECTORS])
def test_names_follow_the_shared_vectors(vector: dict[str, Any]) -> None:
    shapes = {source["name"]: source["shape"] for source in vector["sources"]}
    names = list(shapes)
    if "reason" in vector:
        with pytest.raises(Refused) as refused:
            plan(shapes, vector.get("base"), vector.get("adapter", ""))
        assert refused.value.reason == vector["reason"]
        return
    found = plan(shapes, vector.get("base"), vector.get("adapter", ""))
    assert [
        {"name": t.name, "source": names.index(t.source), "rows": list(t.rows)}
        | ({"columns": list(t.columns)} if t.columns != (0, 1) else {})
        for t in found.tensors
    ] == vector["tensors"]
    assert found.target_modules == vector["target_modules"]


def test_what_to_do_about_several_adapters_is_something_that_can_be_done() -> None:
    shapes = {f"{LAYER}mlp.up_proj.lora_A.{adapter}.weight": (4, 16) for adapter in ("policy", "reference")}
    with pytest.raises(Refused, match=r'2 adapters \("policy", "reference"\); leave those of the others out'):
        plan(shapes)


def tensors_of(data: Any) -> dict[str, torch.Tensor]:
    from safetensors.torch import load

    return load(data.tobytes())


def test_a_fused_projection_computes_the_same_in_parts() -> None:
    a, b = torch.randn(4, 16), torch.randn(32, 4)
    fused = "model.layers.0.self_attn.qkv_proj"
    image = build({f"{fused}.lora_A.weight": a, f"{fused}.lora_B.weight": b}, 0, 1, BufferPool(), base=LLAMA)
    parts = tensors_of(image.data)
    deltas = [parts[f"{LAYER}self_attn.{m}.lora_B.weight"] @ parts[f"{LAYER}self_attn.{m}.lora_A.weight"] for m in ("q_proj", "k_proj", "v_proj")]
    assert torch.equal(torch.cat(deltas), b @ a)
    assert image.target_modules == ["k_proj", "q_proj", "v_proj"]
    settled = state.settle({"target_parameters": ["mlp.experts.down_proj"]}, [*image.target_modules, "experts"], image.unstacked)
    assert settled["target_parameters"], "experts that are still stacked"


def test_an_alpha_of_a_fused_projection_is_not_lost_with_its_name() -> None:
    fused = "model.layers.0.self_attn.qkv_proj"
    tensors = {f"{fused}.lora_A.weight": torch.randn(4, 16), f"{fused}.lora_B.weight": torch.randn(32, 4)}
    fields = {"r": 4, "lora_alpha": 16, "alpha_pattern": {"qkv_proj": 64}}
    split = build(tensors, 0, 1, BufferPool(), base=LLAMA)
    with pytest.raises(Refused, match="one lora_alpha") as refused:
        state.settle(fields, split.target_modules, split.unstacked)
    assert refused.value.reason == "CONFIG_UNSUPPORTED"
    whole = build(tensors, 0, 1, BufferPool())
    assert state.settle(fields, whole.target_modules, whole.unstacked)["alpha_pattern"] == {"qkv_proj": 64}


@pytest.mark.parametrize("cut", ["rows", "columns"])
def test_ranks_that_hold_slices_of_fused_and_stacked_tensors_fill_the_same_image(cut: str) -> None:
    fused, stacked = "model.layers.0.self_attn.qkv_proj", "model.layers.0.mlp.experts"
    base = {**LLAMA, "model_type": "qwen2_moe", "num_experts": 3, "moe_intermediate_size": 8}
    whole = {
        f"{fused}.lora_A.weight": torch.randn(4, 16), f"{fused}.lora_B.weight": torch.randn(32, 4),
        f"{stacked}.lora_A.weight": torch.randn(6, 8), f"{stacked}.lora_B.weight": torch.randn(16, 6),
    }
    expected = build(whole, 0, 1, BufferPool(), base=base)
    seen = np.zeros(expected.data.nbytes, dtype=np.int32)
    merged = np.zeros(expected.data.nbytes, dtype=np.uint8)
    for rank in range(4):
        shards = {}
        for name, tensor in whole.items():
            dimension = 0 if cut == "rows" else 1
            size = tensor.shape[dimension]
            begin, end = rank * size // 4, (rank + 1) * size // 4  # uneven, some empty
            offset = (begin, 0) if cut == "rows" else (0, begin)
            shards[name] = Shard(tensor.narrow(dimension, begin, end - begin), tuple(tensor.shape), offset)
        image = build(shards, rank, 4, BufferPool(), base=base)
        assert image.header == expected.header
        for piece in image.pieces:
            part = slice(piece.offset, piece.offset + piece.length)
            merged[part] = image.data[part]
            seen[part] += 1
    header = len(expected.header)
    assert (seen[header:] == 1).all()
    assert (merged[header:] == expected.data[header:]).all()


def test_experts_that_peft_stacks_compute_the_same_one_by_one() -> None:
    """PEFT itself is the reference: what it would add to each expert's weights."""
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(vocab_size=64, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=1,
                            num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2)
    lora = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], init_lora_weights=False,
                      target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
    model = get_peft_model(Qwen3MoeForCausalLM(config), lora)
    tensors, fields = state.collect(model, None)
    image = build(tensors, 0, 1, BufferPool(), base=base_model.fields_of(model))
    parts = tensors_of(image.data)

    def delta(module: str) -> torch.Tensor:
        return 2.0 * parts[f"{LAYER}mlp.experts.{module}.lora_B.weight"] @ parts[f"{LAYER}mlp.experts.{module}.lora_A.weight"]

    for wrapper in (m for m in model.modules() if type(m).__name__ == "ParamWrapper"):
        wanted = wrapper.get_delta_weight("default")
        for expert in range(4):
            if wrapper.parameter_name == "down_proj":
                ours = delta(f"{expert}.down_proj")
            else:
                ours = torch.cat([delta(f"{expert}.gate_proj"), delta(f"{expert}.up_proj")])
            torch.testing.assert_close(ours, wanted[expert])
    settled = state.settle(fields, image.target_modules, image.unstacked)
    assert settled["target_parameters"] is None
    assert settled["target_modules"] == ["down_proj", "gate_proj", "q_proj", "up_proj"]
    with pytest.raises(Refused, match="one lora_alpha"):
        state.settle({**fields, "alpha_pattern": {"experts": 8}}, image.target_modules, image.unstacked)


def test_a_base_config_is_a_file_or_its_fields(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA))
    assert base_model.read_fields(file) == base_model.read_fields(LLAMA) == LLAMA
    for text in ("[]", "{"):
        file.write_text(text)
        with pytest.raises(Refused, match=r"config\.json that came with the model"):
            base_model.read_fields(file)
    with pytest.raises(Refused, match="cannot read"):
        base_model.read_fields(tmp_path / "none.json")
