"""Base models: which one an adapter was trained on, which engine-proxies compare with the one that their engine serves; and which
of its modules trainers fuse."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from lorry.errors import Refused

#: The key in the image's metadata; lib/peft/trained_on.h has the format.
METADATA_KEY = "lorry.base_model"
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Decoders whose modules are named as Llama's, by config.json's model_type, as in lib/peft/base_model.cc: they keep q, k, v and
# gate, up apart.
_LLAMA_LIKE = {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "qwen2_moe", "qwen3_moe", "mixtral"}


def fused_rows(config: Mapping[str, Any], path: str) -> dict[str, int]:
    """The parts of a module that a trainer fused, and how many rows of its lora_B each of them has, in their order.

    Args:
        config: the fields of the base model's config.json.
        path: the module's, ``model.layers.0.self_attn.qkv_proj``.

    Returns:
        ``{"q_proj": 4096, "k_proj": 1024, "v_proj": 1024}``; empty where the module is none that the base model keeps apart.

    Raises:
        Refused: ``CONFIG_MALFORMED``: the config lacks a size that the parts follow from.
    """
    module = path.rpartition(".")[2]
    if config.get("model_type") not in _LLAMA_LIKE or module not in ("qkv_proj", "gate_up_proj"):
        return {}
    if module == "gate_up_proj":
        inner = _size(config, _inner_size(path))
        return {"gate_proj": inner, "up_proj": inner}
    heads = _size(config, "num_attention_heads")
    kv_heads = heads
    if config.get("num_key_value_heads") is not None or config["model_type"] != "llama":
        kv_heads = _size(config, "num_key_value_heads")
    dim = _size(config, "hidden_size") // heads
    if config.get("head_dim") is not None or str(config["model_type"]).startswith(("qwen3", "gemma")):
        dim = _size(config, "head_dim")
    return {"q_proj": heads * dim, "k_proj": kv_heads * dim, "v_proj": kv_heads * dim}


def _inner_size(path: str) -> str:
    """The field that says how wide the feed-forward block is that holds the module."""
    if ".experts." in path:
        return "moe_intermediate_size"
    return "shared_expert_intermediate_size" if ".shared_expert." in path else "intermediate_size"


def expert_sizes(config: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """(experts, hidden size, an expert's inner size) of a mixture of experts that transformers keeps as stacked parameters
    ``mlp.experts.gate_up_proj`` and ``mlp.experts.down_proj``; None for any other model.

    Raises:
        Refused: ``CONFIG_MALFORMED``: the config lacks one of them.
    """
    if config.get("model_type") not in ("qwen2_moe", "qwen3_moe"):
        return None
    experts = "num_experts" if config.get("num_experts") is not None else "num_local_experts"  # transformers 5 writes the latter
    return _size(config, experts), _size(config, "hidden_size"), _size(config, "moe_intermediate_size")


def _size(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 1 << 31:
        raise Refused(f"the base model's config.json has no positive {name}; give the file that came with the model",
                      "CONFIG_MALFORMED", "INVALID_ARGUMENT")
    return value


def read_fields(config: Mapping[str, Any] | str | os.PathLike[str]) -> Mapping[str, Any]:
    """The fields of a config.json.

    Raises:
        Refused: ``CONFIG_MALFORMED``: the path is no such file.
    """
    if isinstance(config, Mapping):
        return config
    try:
        fields = json.loads(pathlib.Path(config).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(f"cannot read the base model's {config} ({error}); give the config.json that came with the model",
                      "CONFIG_MALFORMED", "INVALID_ARGUMENT") from None
    if not isinstance(fields, dict):
        raise Refused(f"{config} is no JSON object; give the config.json that came with the model", "CONFIG_MALFORMED",
                      "INVALID_ARGUMENT")
    return fields


def fields_of(model: Any) -> Mapping[str, Any] | None:
    """The config.json of a PeftModel's base model; None where it has no transformers config."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = getattr(base, "config", None)
    return config.to_dict() if config is not None and hasattr(config, "to_dict") else None


def describe(model: Any) -> str | None:
    """Of a PeftModel, as it travels in the image's metadata; None where its base model has no transformers config."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = getattr(base, "config", None)
    if config is None or not isinstance(getattr(config, "model_type", None), str):
        return None
    text = config if hasattr(config, "hidden_size") else config.get_text_config()
    quantization = getattr(config, "quantization_config", None)
    method = quantization.get("quant_method") if isinstance(quantization, dict) else getattr(quantization, "quant_method", None)
    commit = getattr(config, "_commit_hash", None)
    fields = {"architecture": text.model_type}
    if method is not None:
        fields["quantization"] = str(getattr(method, "value", method))
    if isinstance(commit, str) and _COMMIT.fullmatch(commit):
        fields["revision"] = commit
    return json.dumps(fields, separators=(",", ":"), sort_keys=True)
