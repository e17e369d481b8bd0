"""Which base model an adapter was trained on: what engine-proxies compare with the one that their engine serves."""

from __future__ import annotations

import json
import re
from typing import Any

#: The key in the image's metadata; lib/peft/trained_on.h has the format.
METADATA_KEY = "lorry.base_model"
_COMMIT = re.compile(r"[0-9a-f]{40}")


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
