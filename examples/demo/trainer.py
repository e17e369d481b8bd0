"""REINFORCE with torch and peft on a tiny model: the policy learns to say tokens of a chosen set."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import torch
from demo.rollouts import Rollout
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import LlamaForCausalLM
from transformers.utils import logging

# A quarter of the vocabulary: the untrained policy says one of them about every fourth token.
WANTED_TOKENS = range(384, 512)
LEARNING_RATE = 0.02
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
State = dict[str, torch.Tensor]


class Trainer:
    """A LoRA policy over a frozen base. Not thread-safe."""

    def __init__(self, model_dir: pathlib.Path) -> None:
        # Two engines share the cores: threads that wait for each other's turn would take seconds for milliseconds of work.
        torch.set_num_threads(1)
        torch.manual_seed(7)
        logging.disable_progress_bar()  # the screen is the demo's
        base = LlamaForCausalLM.from_pretrained(model_dir, torch_dtype=torch.float32)
        config = LoraConfig(r=8, lora_alpha=16, target_modules=PROJECTIONS, task_type="CAUSAL_LM")
        self.model = get_peft_model(base, config)
        # A fresh lora_B is zero and its policy the base model's: start beside it, so that every version can be told
        # from the base by its log-probabilities.
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.02)
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.Adam(trainable, lr=LEARNING_RATE)

    def snapshot(self) -> State:
        """The adapter's tensors as they are now."""
        return {k: v.detach().clone() for k, v in get_peft_model_state_dict(self.model).items()}

    def restore(self, state: State) -> None:
        set_peft_model_state_dict(self.model, state)

    def step(self, rollouts: Sequence[Rollout]) -> float:
        """One policy-gradient step; returns the mean reward of the rollouts (share of wanted tokens)."""
        rewards = [torch.tensor([float(t in WANTED_TOKENS) for t in r.tokens]) for r in rollouts]
        mean = torch.cat(rewards).mean()
        self._optimizer.zero_grad()
        losses = [-(self._logprobs(r) * (reward - mean)).sum() for r, reward in zip(rollouts, rewards, strict=True)]
        (torch.stack(losses).sum() / sum(len(r) for r in rewards)).backward()
        torch.nn.utils.clip_grad_norm_([p for p in self.model.parameters() if p.requires_grad], 1.0)
        self._optimizer.step()
        return float(mean)

    @torch.no_grad()
    def gap(self, rollout: Rollout, *, base: bool = False) -> float:
        """The largest difference between the engine's log-probabilities and torch's, under the adapter as it is now."""
        if base:
            with self.model.disable_adapter():
                ours = self._logprobs(rollout)
        else:
            ours = self._logprobs(rollout)
        return float((ours - torch.tensor(rollout.logprobs)).abs().max())

    def _logprobs(self, rollout: Rollout) -> torch.Tensor:
        ids = torch.tensor([rollout.prompt + rollout.tokens])
        logits = self.model(ids).logits[0, len(rollout.prompt) - 1 : -1].float()
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(rollout.tokens)[:, None])[:, 0]
