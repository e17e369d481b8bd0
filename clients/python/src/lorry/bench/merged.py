"""A base model's weights in this process's memory, into which an adapter is merged and from which it is taken out again, as trainers do
that sync whole models. Needs torch."""

from __future__ import annotations

import json
import math
import pathlib
import re
import shutil
from typing import Any

from lorry.bench.engine import Failed
from lorry.errors import Refused
from lorry.names import read_name

_WEIGHTS = "*.safetensors"


class Merged:
    """Not thread-safe.

    Attributes:
        bytes: of the whole model's weights.
    """

    def __init__(self, base: pathlib.Path, adapter: pathlib.Path) -> None:
        """Reads both into memory.

        Raises:
            Failed: there is no torch, or the adapter's modules are no matrices of the checkpoint.
        """
        try:
            from safetensors.torch import load_file
        except ImportError:
            raise Failed("merging takes torch: pip install torch safetensors beside Lorry's Python client") from None
        self._base = base
        self._weights: dict[str, Any] = {}
        for file in sorted(base.glob(_WEIGHTS)):
            self._weights |= load_file(file)
        if not self._weights:
            raise Failed(f"{base} holds no {_WEIGHTS}")
        self.bytes = sum(t.numel() * t.element_size() for t in self._weights.values())
        self._pairs = self._read(load_file(adapter / "adapter_model.safetensors"), json.loads((adapter / "adapter_config.json").read_text()))

    def _read(self, tensors: dict[str, Any], config: dict[str, Any]) -> list[tuple[str, Any, Any]]:
        """(the base weight's name, A, B times the scale) of each module."""
        halves: dict[str, dict[bool, Any]] = {}
        for name, tensor in tensors.items():
            try:
                said = read_name(name)
            except Refused as error:
                raise Failed(error.message) from None
            halves.setdefault(said.path, {})[said.is_b] = tensor
        pairs = []
        for path, half in halves.items():
            weight = self._weights.get(f"{path}.weight")
            if weight is None or len(half) != 2 or weight.shape != (half[True].shape[0], half[False].shape[1]):
                raise Failed(f"{path} of the adapter is no matrix of {self._base}; only such are merged here")
            pairs.append((f"{path}.weight", half[False].float(), half[True].float() * _scale(config, path, half[False].shape[0])))
        return pairs

    def merge(self, sign: int = 1) -> None:
        for name, a, b in self._pairs:
            weight = self._weights[name]
            weight += (sign * (b @ a)).to(weight.dtype)

    def unmerge(self) -> None:
        self.merge(-1)

    def save(self, target: pathlib.Path) -> None:
        """A checkpoint as the base model's is, written to ``target`` anew."""
        from safetensors.torch import save_file

        target.mkdir(exist_ok=True)
        for file in self._base.iterdir():
            if file.suffix == ".json" and not file.name.endswith(".index.json"):
                shutil.copyfile(file, target / file.name)
        save_file(self._weights, target / "model.safetensors", {"format": "pt"})


def _scale(config: dict[str, Any], path: str, rank: int) -> float:
    """As PEFT has it: alpha / r, or over r's root with rsLoRA; alpha_pattern names modules by the ends of their paths."""
    alpha = config["lora_alpha"]
    for pattern, own in (config.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", path):
            alpha = own
            break
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
