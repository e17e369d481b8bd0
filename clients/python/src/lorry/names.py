"""Tensor names as every engine reads them: ``base_model.model.<module path>.lora_A.weight`` (and ``lora_B``).

Trainers name the same tensors in many ways; this strips the wrappers of DDP, torch.compile, FSDP, activation
checkpointing and PEFT. The vectors in tests/unit/peft/testdata/names.json are shared with lib/peft/names.h.
"""

from __future__ import annotations

from lorry.errors import Refused

_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_OTHER_KINDS = ("ia3_", "hada_", "lokr_", "oft_", "boft_", "vera_lambda", "prompt_embeddings", "prompt_encoder")


def canonical_name(name: str) -> str:
    """The name in the image.

    Raises:
        Refused: the tensor is no lora_A or lora_B of a linear module; the reason says what it is.
    """
    segments = _unwrap(name)
    for after in (1, 2):  # [..., "lora_A", "weight"] or [..., "lora_A", adapter, "weight"]
        if len(segments) < after + 2 or segments[-1] != "weight" or not all(segments):
            continue
        kind = segments[-after - 1]
        if kind in ("lora_A", "lora_B"):
            return ".".join(["base_model", "model", *segments[: -after - 1], kind, "weight"])
    raise _foreign(name, segments)


def _unwrap(name: str) -> list[str]:
    segments = _drop_module([s for s in name.split(".") if s not in _WRAPPERS])
    if len(segments) > 2 and segments[:2] == ["base_model", "model"]:
        segments = _drop_module(segments[2:])
    return segments


def _drop_module(segments: list[str]) -> list[str]:
    while segments and segments[0] == "module":
        segments = segments[1:]
    return segments


def _foreign(name: str, segments: list[str]) -> Refused:
    def refuse(reason: str, why: str) -> Refused:
        return Refused(f'the tensor "{name}" {why}', reason, "INVALID_ARGUMENT")

    if "lora_magnitude_vector" in segments:
        return refuse("DORA_UNSUPPORTED", "belongs to DoRA; train with use_dora=False or sync merged weights instead")
    if "modules_to_save" in segments:
        return refuse("MODULES_TO_SAVE_UNSUPPORTED",
                      "is a whole trained module; leave modules_to_save empty or sync merged weights instead")
    if {"embed_tokens", "lm_head", "lora_embedding_A", "lora_embedding_B"} & set(segments):
        return refuse("EMBEDDING_UNSUPPORTED",
                      "belongs to trained embeddings or added tokens; train without them or sync merged weights instead")
    if any(s.startswith(_OTHER_KINDS) for s in segments):
        return refuse("ADAPTER_KIND_UNSUPPORTED", "belongs to another kind of adapter; sync merged weights instead")
    if segments and segments[-1] == "bias":
        return refuse("BIAS_UNSUPPORTED", 'is a bias; train with bias="none" or sync merged weights instead')
    return refuse("TENSOR_UNKNOWN",
                  "is no lora_A or lora_B weight; publish the adapter's own tensors (get_peft_model_state_dict)")
