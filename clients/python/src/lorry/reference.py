"""What the trainer's own model says of a few fixed prompts: the yardstick by which engine-proxies see that an engine computes it too."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from lorry.errors import Refused

#: The key in the image's metadata; lib/peft/reference.h has the format and the limits.
METADATA_KEY = "lorry.reference"
PROMPTS_MAX = 8
TOKENS_MAX = 64
_LOGPROB_MIN = -1000.0
# A millionth of a nat is less than any two implementations agree to.
_DIGITS = 6


@dataclasses.dataclass(frozen=True)
class Reference:
    """Log-probabilities of fixed prompts under the model with the adapter that is published.

    Attributes:
        prompts: 1 to 8 prompts of 2 to 64 token ids each.
        logprobs: for each prompt, the log-probability (in nats, of the whole vocabulary, at temperature 1) of every token but the
            first, given those before it.
        base: the same under the base model, without the adapter. It tells how much the adapter changes these tokens, by which an
            engine that answers as its base model is known even where the change is small.

    Raises:
        Refused: not within these limits.
    """

    prompts: Sequence[Sequence[int]]
    logprobs: Sequence[Sequence[float]]
    base: Sequence[Sequence[float]] | None = None

    def __post_init__(self) -> None:
        _check_prompts(self.prompts)
        for rows in (self.logprobs, self.base):
            if rows is None:
                continue
            if [len(row) for row in rows] != [len(prompt) - 1 for prompt in self.prompts]:
                raise _invalid("each prompt needs one log-probability for every token but the first")
            if not all(_LOGPROB_MIN <= value < 1e-3 for row in rows for value in row):  # rounding may go above 0
                raise _invalid("a log-probability is none: it must be at most 0, finite, in nats")

    @classmethod
    def of(cls, model: Any, prompts: Sequence[Sequence[int]]) -> Reference:
        """Computes it with a PeftModel as it is now.

        Dropout is off meanwhile, gradients are not computed, and when it returns the model's modes, and what is frozen or merged, are as before. Where the model is
        sharded every rank calls it, as any forward pass.

        Args:
            model: called as ``model(input_ids)``, answers ``.logits`` of shape [1, tokens, vocabulary].
            prompts: token ids; the same for every version, so that gaps can be compared.
        """
        _check_prompts(prompts)
        import torch

        modes = [(module, module.training) for module in model.modules()]
        # PEFT unfreezes the whole adapter where disable_adapter ends, and unmerges what was merged.
        trained = [(weight, weight.requires_grad) for weight in model.parameters()]
        merged = [(module, list(module.merged_adapters)) for module in model.modules() if getattr(module, "merged_adapters", None)]
        model.eval()
        try:
            with torch.no_grad():
                logprobs = [_logprobs(model, prompt) for prompt in prompts]
                base = None
                if hasattr(model, "disable_adapter"):
                    with model.disable_adapter():
                        base = [_logprobs(model, prompt) for prompt in prompts]
        finally:
            for module, training in modes:
                module.training = training
            for weight, requires_grad in trained:
                if weight.requires_grad != requires_grad:  # FSDP has weights that cannot be set, nor are they by PEFT
                    weight.requires_grad = requires_grad
            for module, names in merged:
                if not module.merged_adapters:
                    module.merge(adapter_names=names)
        return cls([list(prompt) for prompt in prompts], logprobs, base)

    def to_json(self) -> str:
        """As it travels in the image's metadata."""
        prompts = []
        for i, tokens in enumerate(self.prompts):
            prompt: dict[str, Any] = {"tokens": [int(t) for t in tokens], "logprobs": _rounded(self.logprobs[i])}
            if self.base is not None:
                prompt["base"] = _rounded(self.base[i])
            prompts.append(prompt)
        return json.dumps({"prompts": prompts}, separators=(",", ":"))


def _invalid(why: str) -> Refused:
    return Refused(f"the reference cannot be published: {why}", "REFERENCE_INVALID", "INVALID_ARGUMENT")


def _check_prompts(prompts: Sequence[Sequence[int]]) -> None:
    if not 1 <= len(prompts) <= PROMPTS_MAX:
        raise _invalid(f"it has {len(prompts)} prompts, and 1 to {PROMPTS_MAX} may be")
    for prompt in prompts:
        if isinstance(prompt, (str, bytes)):
            raise _invalid(f"a prompt is text, {prompt[:20]!r}; give its token ids: tokenizer(text).input_ids")
        if not 2 <= len(prompt) <= TOKENS_MAX:
            raise _invalid(f"a prompt has {len(prompt)} tokens, and 2 to {TOKENS_MAX} may be")
        if not all(0 <= int(token) < 2**31 for token in prompt):
            raise _invalid("a token id is negative, or none")


def _rounded(row: Sequence[float]) -> list[float]:
    return [min(round(float(value), _DIGITS), 0.0) for value in row]


def _logprobs(model: Any, prompt: Sequence[int]) -> list[float]:
    import torch

    device = next(model.parameters()).device
    ids = torch.tensor([[int(token) for token in prompt]], device=device)
    logits = model(input_ids=ids).logits[0, :-1].float()
    chosen = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None].to(logits.device))[:, 0]
    values: list[float] = chosen.tolist()
    return values
