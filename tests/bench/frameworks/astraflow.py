"""usage: PYTHONPATH=tests:examples:clients/python/src LORRY_BIN_DIR=build/release/bin .venv/dev/bin/python -B tests/bench/frameworks/astraflow.py

AstraFlow's loop twice with one seed, on two servers, one that trains and one that evaluates: with its adapter loaded at Lorry's doors
(pause, load on each, flush, continue), and with the adapter merged into the base model, whose weights the servers then load. The servers
are torch_sglang.py's, or real SGLangs on the CPU with `--real`, which take an hour. Writes docs/frameworks/astraflow.json, and the picture
of it, astraflow.svg. `--ways` alone draws what is there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable

from testing import engines
from testing.engines import ROOT, http_json

sys.path.append(str(ROOT / "examples"))
sys.path.append(str(pathlib.Path(__file__).parent))
from plot import draw  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
OUT = ROOT / "docs" / "frameworks"
SEED = 7
PROMPTS, TOKENS = 8, 10
# A fifth of the demo's: the reward rises over all of the steps.
LEARNING_RATE = 0.004
CALL_S = 300.0
WEIGHT_GAP = 1e-3
ARGS = ["--max-loaded-loras", "8"]
REAL = "--real" in sys.argv


def ask(url: str, name: str | None, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
    """Tokens and their log-probabilities, of one request that holds all prompts."""
    body: dict = {"input_ids": prompts, "return_logprob": True,
                  "sampling_params": {"temperature": 1.0, "max_new_tokens": TOKENS, "ignore_eos": True}}
    if name is not None:
        body["lora_path"] = [name] * len(prompts)
    status, replies = http_json("POST", f"{url}/generate", body, CALL_S)
    assert status == 200, replies
    made = []
    for reply in replies:
        entries = reply["meta_info"]["output_token_logprobs"]
        made.append(([e[1] for e in entries], [e[0] for e in entries]))
    return made


def train(steps: int, model: pathlib.Path, urls: tuple[str, str], publish: Callable, name: Callable[[], str | None]) -> list[dict[str, float]]:
    """One minibatch a step, by rollouts of the version before it; log-probabilities are computed anew for the importance weights."""
    from demo.rollouts import Rollout
    from demo.trainer import WANTED_TOKENS, Trainer

    trainer, chooser = Trainer(model), random.Random(SEED)
    trainer._optimizer.param_groups[0]["lr"] = LEARNING_RATE
    held_out = [[1, 40 + 7 * i, 90 + 5 * i, 130 + 3 * i] for i in range(PROMPTS)]
    series = []
    publish(trainer, 1)
    for step in range(1, steps + 1):
        began = time.monotonic()
        prompts = [[1] + [chooser.randrange(3, 384) for _ in range(3)] for _ in range(PROMPTS)]
        rollouts = [Rollout("", prompt, tokens, logprobs, step, "", "", False, 0.0)
                    for prompt, (tokens, logprobs) in zip(prompts, ask(urls[0], name(), prompts), strict=True)]
        gap = math.expm1(max(trainer.gap(rollout) for rollout in rollouts))
        assert gap <= WEIGHT_GAP, f"step {step}: |importance weight - 1| is {gap}"
        evaluated = [token in WANTED_TOKENS for tokens, _ in ask(urls[1], name(), held_out) for token in tokens]
        reward = trainer.step(rollouts)
        asked_s, began = time.monotonic() - began, time.monotonic()
        publish(trainer, step + 1)
        series.append({"eval": sum(evaluated) / len(evaluated), "reward": reward, "weight_gap": gap, "sync_s": time.monotonic() - began})
        print(f"{step:3} reward {reward:.2f} eval {series[-1]['eval']:.2f} gap {gap:.1e} step {asked_s:.1f} s sync {series[-1]['sync_s']:.2f} s", flush=True)
    return series


def pair(model: pathlib.Path, folder: pathlib.Path) -> list[engines.Engine]:
    made = []
    for engine_name in ("train", "eval"):
        if REAL:
            engine = engines.real("sglang", model, log_dir=folder, args=["--random-seed", str(SEED), *ARGS])
        else:
            port = engines.free_port()
            command = [engines.DEV_PYTHON, "-B", HERE / "torch_sglang.py", "--model", model, "--port", "{port}", "--max-running-requests", "16", *ARGS]
            engine = engines.Engine("sglang", command, port=port, environment={"LORRY_FULL_WEIGHTS": str(folder / "full")}, log_dir=folder,
                                    start_deadline_s=CALL_S, is_fake=True)
        engine.name = engine_name
        made.append(engine)
    return made


def adapters(steps: int, model: pathlib.Path, folder: pathlib.Path) -> list[dict[str, float]]:
    from testing.astraflow import Service
    from testing.world import World

    weights = folder / "weights"
    weights.mkdir()
    with World(os.environ["LORRY_BIN_DIR"], folder / "fleet", *pair(model, folder), proxy_flags={"bindings-root": weights}) as world:
        urls = world.fleet.door("train"), world.fleet.door("eval")
        service = Service(urls[:1], [urls[1:], urls[:1]], weights / "policy")

        def publish(trainer, version):
            trainer.model.save_pretrained(folder / "saved")
            assert service.notify_version(version, folder / "saved")

        return train(steps, model, urls, publish, lambda: service.train.current_lora_name)


def merged(steps: int, model: pathlib.Path, folder: pathlib.Path) -> list[dict[str, float]]:
    from safetensors.torch import save_file

    full = folder / "full"
    shutil.copytree(model, full)
    with engines.running(*pair(model, folder)) as servers:
        urls = servers[0].url, servers[1].url

        def publish(trainer, _version):
            trainer.model.merge_adapter()
            state = {key.removeprefix("base_model.model.").replace(".base_layer", ""): value.detach().clone()
                     for key, value in trainer.model.state_dict().items() if "lora_" not in key}
            trainer.model.unmerge_adapter()
            save_file(state, full / "model.safetensors", {"format": "pt"})
            for path, body in (("/pause_generation", {}), ("/update_weights_from_disk", {"model_path": str(full)}), ("/flush_cache", {}),
                               ("/continue_generation", {})):
                for url in urls:
                    status, reply = http_json("POST", url + path, body, CALL_S)
                    assert status == 200, (path, reply)

        return train(steps, model, urls, publish, lambda: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--ways", nargs="*", default=["adapters", "merged"], help="none: only draw what is there")
    arguments = parser.parse_args()
    told = OUT / "astraflow.json"
    known = json.loads(told.read_text()) if told.exists() else {}
    for way in (adapters, merged):
        if way.__name__ not in arguments.ways:
            continue
        with tempfile.TemporaryDirectory(prefix="lorry-astraflow-") as folder:
            series = way(arguments.steps, engines.tiny_model() / "model", pathlib.Path(folder))
        known = json.loads(told.read_text()) if told.exists() else {}
        known |= {"servers": "real SGLangs" if REAL else "torch behind the fake SGLang's HTTP", "seed": SEED, "prompts": PROMPTS, "tokens": TOKENS,
                  way.__name__: [{key: round(value, 7) for key, value in step.items()} for step in series]}
        told.write_text(json.dumps(known) + "\n")
    if {"adapters", "merged"} <= set(known):
        (OUT / "astraflow.svg").write_text(draw(known))


if __name__ == "__main__":
    main()
