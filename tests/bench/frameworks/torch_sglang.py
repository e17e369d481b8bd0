"""The fake SGLang with a real model: its HTTP, registry and scheduler are the fake's, its tokens are torch's and its adapters PEFT's, kept
apart from the base weights as in an engine. Ten times as fast as a real engine on a CPU, which starts for minutes.

Tokens are drawn at temperature 1 by the seed, the prompt and the position alone, so that two runs whose weights agree draw alike.
`LORRY_FULL_WEIGHTS` names the checkpoint that /update_weights_from_disk loads.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "fakes"))
import engine_core  # noqa: E402
import engine_memory  # noqa: E402

SEED = 7
ADAPTERS_MAX = 16


class Model:
    """The base model and adapters by digest. One thread's."""

    def __init__(self, directory: str) -> None:
        torch.set_num_threads(1)
        base = LlamaForCausalLM.from_pretrained(directory, torch_dtype=torch.float32)
        self._model: PeftModel = get_peft_model(base, LoraConfig(r=1, target_modules=["q_proj"]), adapter_name="none").eval()
        self._made: dict[tuple[str, tuple[int, ...]], tuple[list[int], list[float]]] = {}
        self._known: list[str] = []
        self._asked: list[engine_core.Request] = []

    def expect(self, request: engine_core.Request) -> None:
        """Of what is asked together the tokens are computed together."""
        self._asked.append(request)

    def learn(self, digest: str, path: str) -> None:
        if digest in self._known:
            return
        self._model.load_adapter(path, adapter_name=digest)
        self._known.append(digest)
        while len(self._known) > ADAPTERS_MAX:
            self._model.delete_adapter(self._known.pop(0))

    def replace_base(self, checkpoint: pathlib.Path) -> None:
        own = dict(self._model.named_parameters())
        for name, tensor in load_file(checkpoint / "model.safetensors").items():
            inside = f"base_model.model.{name}"
            with torch.no_grad():
                own.get(inside, own.get(inside.removesuffix("weight") + "base_layer.weight")).copy_(tensor)
        self._made.clear()

    @torch.no_grad()
    def next_logprobs(self, digest: str, rows: list[list[int]]) -> torch.Tensor:
        """Of rows of one length."""
        if digest == engine_core.BASE_DIGEST:
            with self._model.disable_adapter():
                logits = self._model(torch.tensor(rows)).logits
        else:
            self._model.set_adapter(digest)
            logits = self._model(torch.tensor(rows)).logits
        return torch.log_softmax(logits[:, -1].float(), -1)

    def made(self, digest: str, ids: list[int], count: int) -> tuple[list[int], list[float]]:
        """At least so many tokens behind the prompt, and their log-probabilities."""
        found = self._made.setdefault((digest, tuple(ids)), ([], []))
        if len(found[0]) < count:
            asked, self._asked = self._asked, []
            prompts = {tuple(r.ids) for r in asked if r.digest == digest and len(r.ids) == len(ids) and (digest, tuple(r.ids)) not in self._made}
            self._make(digest, [list(ids), *map(list, sorted(prompts - {tuple(ids)}))], max([count, *(r.max_tokens for r in asked)]))
        return found

    def _make(self, digest: str, prompts: list[list[int]], count: int) -> None:
        made = [self._made.setdefault((digest, tuple(prompt)), ([], [])) for prompt in prompts]
        while len(made[0][0]) < count:
            of_next = self.next_logprobs(digest, [prompt + tokens for prompt, (tokens, _) in zip(prompts, made, strict=True)])
            for row, prompt, (tokens, logprobs) in zip(of_next, prompts, made, strict=True):
                drawn = int.from_bytes(hashlib.sha256(f"{SEED}:{prompt}:{len(tokens)}".encode()).digest()[:8], "big") / 2**64
                token = min(int(torch.searchsorted(row.exp().cumsum(0), drawn)), len(row) - 1)
                tokens.append(token)
                logprobs.append(float(row[token]))


def main() -> None:
    model = Model(sys.argv[sys.argv.index("--model") + 1])
    read = engine_core.read_adapter

    def read_adapter(name, path, *more):
        adapter = read(name, path, *more)
        model.learn(adapter.digest, path)
        return adapter

    def logprob_at(digest: str, ids: list[int], position: int) -> float:
        # A probe asks for the prompt's own, which differ from the base model's as any other token's do.
        return float(model.next_logprobs(digest, [ids])[0, 0]) if position < 0 else model.made(digest, ids, position + 1)[1][position]

    make = engine_core.Request.__init__

    def make_request(request, *fields, **more):
        make(request, *fields, **more)
        model.expect(request)

    engine_core.Request.__init__ = make_request
    engine_core.read_adapter, engine_core.logprob_at = read_adapter, logprob_at
    engine_core.token_at = lambda digest, ids, position: model.made(digest, ids, position + 1)[0][position]
    engine_memory.Memory.update = lambda _memory, _live: model.replace_base(pathlib.Path(os.environ["LORRY_FULL_WEIGHTS"]))
    import fake_sglang

    fake_sglang.main()


if __name__ == "__main__":
    main()
