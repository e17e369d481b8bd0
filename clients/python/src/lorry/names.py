"""Tensor names as every engine reads them: ``base_model.model.<module path>.lora_A.weight`` (and ``lora_B``).

Trainers name the same tensors in many ways; this strips the wrappers of DDP, torch.compile, FSDP, activation
checkpointing and PEFT. The vectors in tests/unit/peft/testdata/names.json are shared with lib/peft/names.h.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lorry.base_model import expert_sizes, fused_rows
from lorry.errors import Refused

_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_OTHER_KINDS = ("ia3_", "hada_", "lokr_", "oft_", "boft_", "vera_lambda", "prompt_embeddings", "prompt_encoder")


@dataclass(frozen=True)
class LoraName:
    """What a trainer's name of a tensor says.

    Attributes:
        path: the module's path in the model, without PEFT's prefix: ``model.layers.0.self_attn.q_proj``.
        is_b: a lora_B, else a lora_A.
        adapter: ``default`` of ``lora_A.default.weight``; empty where the name tells none.
    """

    path: str
    is_b: bool
    adapter: str

    @property
    def module(self) -> str:
        """The path's last component: ``q_proj``."""
        return self.path.rpartition(".")[2]

    def canonical(self) -> str:
        """The name in the image."""
        return f"base_model.model.{self.path}.{'lora_B' if self.is_b else 'lora_A'}.weight"


@dataclass(frozen=True)
class Planned:
    """One tensor of the image: rows ``[rows[0], rows[1])`` of a source tensor; of its columns the one at ``columns[0]`` and
    every ``columns[1]``-th after it."""

    name: str
    source: str
    rows: tuple[int, int]
    columns: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Plan:
    """What becomes of a trainer's tensors.

    Attributes:
        tensors: of the image, sorted by name, each once.
        target_modules: last components of the adapted modules' paths, sorted: the config's ``target_modules``.
        unstacked: fused modules or stacked experts were taken apart, so that the config's names of them are gone.
    """

    tensors: list[Planned]
    target_modules: list[str]
    unstacked: bool = False


@functools.lru_cache(maxsize=1 << 16)  # every step has the names of the step before
def read_name(name: str) -> LoraName:
    """Reads a trainer's name.

    Raises:
        Refused: the tensor is no lora_A or lora_B of a linear module; the reason says what it is.
    """
    segments = _unwrap(name)
    for after in (1, 2):  # [..., "lora_A", "weight"] or [..., "lora_A", adapter, "weight"]
        if len(segments) < after + 2 or segments[-1] != "weight" or not all(segments):
            continue
        kind = segments[-after - 1]
        if kind in ("lora_A", "lora_B"):
            return LoraName(".".join(segments[: -after - 1]), kind == "lora_B", segments[-2] if after == 2 else "")
    raise _foreign(name, segments)


def plan(shapes: Mapping[str, Sequence[int]], base: Mapping[str, Any] | None = None, adapter: str = "") -> Plan:
    """Maps every tensor of a trainer to those of the image; only tensors of other adapters than ``adapter`` are left out.

    Args:
        shapes: name → shape of the whole tensor.
        base: the fields of the base model's config.json. Where that model keeps q, k, v and gate, up apart, fused ``qkv_proj``
            and ``gate_up_proj`` are split: B by rows, A repeated, which computes exactly the same. So are experts that PEFT
            adapts as one parameter (``target_parameters``), each into matrices of its own: engines read those alike, and stacked
            ones each in another way.
        adapter: the one to publish, where the names tell several.

    Raises:
        Refused: as :func:`read_name`; ``TENSOR_AMBIGUOUS``: two tensors for one name, or several adapters; ``TENSOR_SHAPE``: a
            fused B whose rows are not those of its parts.
    """
    tensors: list[Planned] = []
    adapters: set[str] = set()
    modules: set[str] = set()
    unstacked = False
    stacks = _stacks(shapes, base) if base is not None else {}
    for source, shape in shapes.items():
        name = read_name(source)
        if adapter and name.adapter and name.adapter != adapter:
            continue
        adapters.add(name.adapter)
        parts = fused_rows(base, name.path) if base is not None else {}
        if name.path in stacks:
            tensors += _unstack(source, shape, name, stacks[name.path])
            modules |= stacks[name.path].parts.keys()
            unstacked = True
        elif parts:
            tensors += _split(source, shape, name, parts)
            modules |= parts.keys()
            unstacked = True
        else:
            tensors.append(Planned(name.canonical(), source, (0, shape[0] if shape else 0)))
            modules.add(name.module)
    if len(adapters) > 1:
        shown = ", ".join(f'"{a}"' for a in sorted(adapters)[:5])
        raise Refused(f"the tensors are of {len(adapters)} adapters ({shown}); leave those of the others out, as "
                      "get_peft_model_state_dict(model, adapter_name=...) does", "TENSOR_AMBIGUOUS", "INVALID_ARGUMENT")
    tensors.sort(key=lambda t: t.name)
    for one, other in pairwise(tensors):
        if one.name == other.name:
            raise Refused(f'"{one.source}" and "{other.source}" both map to "{one.name}"; leave one out', "TENSOR_AMBIGUOUS",
                          "INVALID_ARGUMENT")
    return Plan(tensors, sorted(modules), unstacked)


def _split(source: str, shape: Sequence[int], name: LoraName, parts: Mapping[str, int]) -> list[Planned]:
    if len(shape) != 2 or (name.is_b and shape[0] != sum(parts.values())):
        raise Refused(f'"{source}" is fused and has the shape {list(shape)}; the base model asks for {sum(parts.values())} rows; '
                      "publish for the model that was trained", "TENSOR_SHAPE", "INVALID_ARGUMENT")
    parent = name.path[: -len(name.module)]
    planned = []
    row = 0
    for module, rows in parts.items():
        part = LoraName(parent + module, name.is_b, "").canonical()
        planned.append(Planned(part, source, (row, row + rows) if name.is_b else (0, shape[0])))
        row += rows
    return planned


@dataclass(frozen=True)
class _Stack:
    """Experts that are adapted as one parameter: lora_A is (experts * r, in), expert by expert; lora_B is (out, r * experts),
    an expert's columns each ``experts`` apart (ParamWrapper in PEFT's tuners/lora/layer.py)."""

    experts: int
    rank: int
    parts: dict[str, int]  # module → rows of lora_B, in their order


def _stacks(shapes: Mapping[str, Sequence[int]], base: Mapping[str, Any]) -> dict[str, _Stack]:
    """By path. PEFT nests the wrappers of two parameters of one module, in the order in which they were asked for: which of them
    a path means is told by the shapes."""
    sizes = expert_sizes(base)
    if sizes is None:
        return {}
    experts, hidden, inner = sizes
    sides: dict[str, dict[bool, Sequence[int]]] = {}
    for source, shape in shapes.items():
        name = read_name(source)
        if name.path.removesuffix(".base_layer").endswith(".mlp.experts"):
            sides.setdefault(name.path, {})[name.is_b] = shape
    found = {}
    for path, both in sides.items():
        a, b = both.get(False, ()), both.get(True, ())
        fits = len(a) == len(b) == 2 and a[0] == b[1] and a[0] > 0 and a[0] % experts == 0
        if fits and (a[1], b[0]) == (hidden, 2 * inner):
            found[path] = _Stack(experts, a[0] // experts, {"gate_proj": inner, "up_proj": inner})
        elif fits and (a[1], b[0]) == (inner, hidden):
            found[path] = _Stack(experts, a[0] // experts, {"down_proj": hidden})
        else:
            raise Refused(f'"{path}" adapts stacked experts with the shapes {list(a)} and {list(b)}; the base model has {experts} '
                          f"experts of {hidden} and {inner}; publish for the model that was trained", "TENSOR_SHAPE",
                          "INVALID_ARGUMENT")
    return found


def _unstack(source: str, shape: Sequence[int], name: LoraName, stack: _Stack) -> list[Planned]:
    parent = name.path.removesuffix(".base_layer")
    planned = []
    for expert in range(stack.experts):
        row = 0
        for module, rows in stack.parts.items():
            part = LoraName(f"{parent}.{expert}.{module}", name.is_b, "").canonical()
            if name.is_b:
                planned.append(Planned(part, source, (row, row + rows), (expert, stack.experts)))
            else:
                planned.append(Planned(part, source, (expert * stack.rank, (expert + 1) * stack.rank)))
            row += rows
    return planned


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
                      "belongs to trained embeddings or added tokens; train without them (leave embed_tokens and lm_head out of "
                      "target_modules) or sync merged weights instead")
    if any(s.startswith(_OTHER_KINDS) for s in segments):
        return refuse("ADAPTER_KIND_UNSUPPORTED", "belongs to another kind of adapter; sync merged weights instead")
    if segments and segments[-1] == "bias":
        return refuse("BIAS_UNSUPPORTED", 'is a bias; train with bias="none" or sync merged weights instead')
    return refuse("TENSOR_UNKNOWN",
                  "is no lora_A or lora_B weight; publish the adapter's own tensors (get_peft_model_state_dict)")
