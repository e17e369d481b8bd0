"""torch + peft as the judge of real engines: which version's log-probabilities are these?"""

from __future__ import annotations

import pathlib

import torch
from peft import PeftModel
from testing.doors import Answer
from transformers import LlamaForCausalLM

# float32 in three implementations of one network: seen below 1e-4; versions differ by more than 1e-2.
TOLERANCE = 2e-3


class Reference:
    """The base model and adapters on it. Not thread-safe."""

    def __init__(self, model_dir: pathlib.Path, adapters: list[pathlib.Path]) -> None:
        base = LlamaForCausalLM.from_pretrained(model_dir, torch_dtype=torch.float32)
        self.adapters = {a.name: a for a in adapters}
        self._model = PeftModel.from_pretrained(base, adapters[0], adapter_name=adapters[0].name)
        for adapter in adapters[1:]:
            self._model.load_adapter(adapter, adapter_name=adapter.name)
        self._model.eval()

    @torch.no_grad()
    def logprobs(self, prompt: list[int], tokens: list[int], adapter: str | None) -> list[float]:
        """Log-probability of each of `tokens` after `prompt`; None is the base model."""
        ids = torch.tensor([prompt + tokens])
        if adapter is None:
            with self._model.disable_adapter():
                logits = self._model(ids).logits
        else:
            self._model.set_adapter(adapter)
            logits = self._model(ids).logits
        logits = logits[0, len(prompt) - 1 : -1].float()
        chosen: list[float] = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
        return chosen

    def gap(self, answer: Answer, adapter: str | None) -> float:
        """The largest difference between the engine's log-probabilities and torch's under `adapter`."""
        ours = self.logprobs(answer.prompt, answer.tokens, adapter)
        assert len(ours) == len(answer.logprobs) > 0
        return max(abs(a - b) for a, b in zip(ours, answer.logprobs, strict=True))

    def judge(self, answer: Answer, folder: pathlib.Path) -> None:
        """Asserts that the adapter in `folder` answered, and nothing else that could have."""
        gaps = {name: self.gap(answer, name) for name in (*self.adapters, None)}
        assert gaps.pop(folder.name) <= TOLERANCE, f"not {folder.name}: {gaps}"
        assert min(gaps.values()) > 5 * TOLERANCE, f"too close to another to tell: {gaps}"
