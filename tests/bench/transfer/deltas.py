"""usage: deltas.py BIN_DIR [STEPS [MB_S]]: what telling a version by the last one (`--fetch-deltas`) saves over slow wires.

An adapter of rank 64 is trained on a small model by torch, PEFT and AdamW, at learning rates that RL uses, in the dtypes that
trainers publish. Each step is published over wires of MB_S (40) megabytes a second to two proxies. Printed are the share of each
image's bytes that travelled, and the seconds from "stored" to both proxies having it, beside the same without.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from transformers import LlamaConfig, LlamaForCausalLM

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parents[2])]
from transfer.end_to_end import PARTS, Rounds, fleet
from transfer.wires import slow

MODEL = LlamaConfig(vocab_size=1024, hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8)
LORA = LoraConfig(r=64, lora_alpha=64, target_modules=[part.split(".")[1] for part in PARTS], task_type="CAUSAL_LM")
CONFIG = {"peft_type": "LORA", "r": LORA.r, "lora_alpha": LORA.lora_alpha, "target_modules": sorted(LORA.target_modules)}
# Adam's first steps are all of one size.
WARM_UP = 10


def training(rate: float, steps: int) -> Iterator[dict[str, torch.Tensor]]:
    """The adapter after each of so many steps."""
    torch.manual_seed(7)
    model = get_peft_model(LlamaForCausalLM(MODEL), LORA)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=rate)
    for step in range(WARM_UP + steps):
        ids = torch.randint(0, MODEL.vocab_size, (2, 32))
        ids[:, 1::2] = (ids[:, 0::2] * 7 + 3) % MODEL.vocab_size  # something to learn
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        if step >= WARM_UP:
            yield {k: v.detach().clone() for k, v in get_peft_model_state_dict(model).items()}


def turn(bin_dir: str, versions: list[dict[str, torch.Tensor]], bytes_s: float, deltas: bool) -> tuple[float, float]:
    """The share of the bytes that travelled, and the median seconds from "stored" to both proxies having it; without the first one."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lorry-bench-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        flags = {"read-ahead": "false", "host-cache": "off", "fetch-deltas": str(deltas).lower()}
        prepare = slow(stack, bytes_s, **flags)
        world = stack.enter_context(fleet(bin_dir, folder, "policy", prepare=prepare, model=MODEL.to_dict(), rank=LORA.r))

        def moved(prefix: str = "") -> float:
            name = f"lorry_proxy_fetch_bytes_total{prefix}"
            return sum(sum(proxy.samples(name)) for proxy in world.fleet.proxies.values())

        rounds = Rounds(world, "policy")
        rounds.publish(versions[0], CONFIG)
        before = moved()
        took = [rounds.publish(version, CONFIG).stored_to_fetched for version in versions[1:]]
        told = moved('{transport="delta"')
        return 1 - told / (moved() - before), statistics.median(took)


def main() -> None:
    torch.set_num_threads(1)
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    bytes_s = (float(sys.argv[3]) if len(sys.argv) > 3 else 40) * 1e6
    print(f"{steps} steps, wires of {bytes_s / 1e6:.0f} MB/s; load {os.getloadavg()[0]:.1f}\n")
    print("| dtype | learning rate | MB | of the bytes travelled | s | without, s |\n|---|---|---|---|---|---|")
    for rate in (1e-6, 1e-5, 1e-4, 1e-3):
        trained = list(training(rate, steps + 1))
        for dtype in (torch.bfloat16, torch.float32):
            versions = [{k: v.to(dtype) for k, v in version.items()} for version in trained]
            size = sum(v.nbytes for v in versions[0].values())
            share, took = turn(sys.argv[1], versions, bytes_s, deltas=True)
            _, plain = turn(sys.argv[1], versions, bytes_s, deltas=False)
            name = str(dtype).removeprefix("torch.")
            print(f"| {name} | {rate:g} | {size / 1e6:.1f} | {share:.2f} | {took:.2f} | {plain:.2f} |", flush=True)


if __name__ == "__main__":
    main()
