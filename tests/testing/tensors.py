"""Adapters as frameworks send them in a call of SGLang's /load_lora_adapter_from_tensors: by value, as torch pickles tensors on the CPU."""

from __future__ import annotations

import base64
import json
import pathlib
import pickle
from typing import Any


def tensor_call(name: str, folder: pathlib.Path, ranks: int = 1, **more: object) -> dict[str, Any]:
    """With the tensors and the config of a PEFT directory; as many copies as the engine has ranks."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "adapter_model.safetensors")
    pickled = base64.b64encode(pickle.dumps(tensors)).decode()
    config = json.loads((folder / "adapter_config.json").read_text())
    return {"lora_name": name, "serialized_named_tensors": [pickled] * ranks, "config_dict": config, **more}
