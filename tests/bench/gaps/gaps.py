"""usage: gaps.py BIN_DIR [--kind vllm] [--dtype bfloat16]: how far is a real engine from its trainer, and how far is what was not trained?

Publishes a good version and planted ones (alpha doubled, a layer dropped, another version's bytes, nothing at all), each with
the reference of the good one, under a policy that only measures. Adapters of four sizes, trainers of two dtypes. A limit
(the policy's probe_gap) is right where it lies between the first column and the others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "fakes"), str(ROOT / "clients" / "python" / "src")]

import lorry  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from peft import PeftModel  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402
from testing import engines  # noqa: E402
from testing.world import ADAPTER, World  # noqa: E402
from transformers import LlamaForCausalLM  # noqa: E402

PROMPTS = [[1, *range(40 + 7 * i, 300, 23)] for i in range(3)]
# Of lora_B: from an adapter that says something else altogether to one at the beginning of its training.
SCALES = (1.0, 0.3, 0.1, 0.03)
SERVING_S = 180.0
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"

Tensors = dict[str, np.ndarray]


def parts_of(folder: pathlib.Path) -> tuple[Tensors, dict]:
    return load_file(folder / WEIGHTS), json.loads((folder / CONFIG).read_text())


def scaled(tensors: Tensors, factor: float) -> Tensors:
    return {k: v * np.float32(factor) if "lora_B" in k else v for k, v in tensors.items()}


def reference(model: pathlib.Path, folder: pathlib.Path, tensors: Tensors, config: dict, dtype: torch.dtype) -> lorry.Reference:
    """What a trainer of that dtype says of the adapter; `folder` is made for it."""
    folder.mkdir()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config))
    base = LlamaForCausalLM.from_pretrained(model, torch_dtype=dtype)
    return lorry.Reference.of(PeftModel.from_pretrained(base, folder).to(dtype), PROMPTS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="gaps.py", description="how far an engine is from its trainer")
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--kind", choices=engines.KINDS, default="vllm")
    parser.add_argument("--dtype", default="bfloat16", help="of the engine (bfloat16)")
    args = parser.parse_args()
    folder, tiny = pathlib.Path(tempfile.mkdtemp(prefix="lorry-gaps-")), engines.tiny_model()
    (first, config), (second, other) = (parts_of(tiny / "adapters" / v) for v in ("v1", "v2"))
    engine = engines.real(args.kind, tiny / "model", log_dir=folder, args=[*engines.SLOT_ARGS[args.kind], "--dtype", args.dtype])
    print(f"{args.kind} in {args.dtype}: nats from the trainer in the mean (at most)")
    numbers = itertools.count(1)
    try:
        with World(args.bin_dir, folder, engine) as world, world.open_run() as run:
            world.admin.set_policy(ADAPTER, {"probe_gap": 0})
            for scale, dtype in itertools.product(SCALES, (torch.float32, torch.bfloat16)):
                good = scaled(first, scale)
                said = reference(tiny / "model", folder / f"{scale}-{dtype}", good, config, dtype)
                published = {
                    "good": (good, config),
                    "alpha doubled": (good, config | {"lora_alpha": 2 * config["lora_alpha"]}),
                    "a layer dropped": ({k: v for k, v in good.items() if "layers.1." not in k}, config),
                    "another version": (scaled(second, scale), other),
                    "the base": (scaled(first, 1e-12), config),
                }
                gaps = []
                for what, (tensors, fields) in published.items():
                    number = next(numbers)
                    run.publish(tensors, config=fields, version=number, reference=said).wait("serving", SERVING_S)
                    gap = world.reported(args.kind, number)["gap"]
                    mean, most = (int(gap.get(f"{over}_ppm", 0)) / 1e6 for over in ("mean", "max"))
                    gaps.append(f"{what} {mean:.4f} ({most:.4f})")
                print(f"  lora_B x {scale:<4} trainer in {str(dtype).removeprefix('torch.'):8}  " + "  ".join(gaps), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
