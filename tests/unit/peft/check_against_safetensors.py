"""Compares lib/peft with the safetensors package and with reference.py on random adapters.

The seed is fixed. Each line to the layout tool is one JSON object {tensors, metadata, config, image},
each line back is {header, canonical, digest, error}.
"""

import json
import pathlib
import random
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "testdata")]
import make_goldens  # noqa: E402
import reference  # noqa: E402

CASES = 300
ALPHABET = 'abzAZ019._- "\\/\n\t\x01\x1f\x7fé\u2028\uff5e😀'


def random_name(rng):
    return "".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 12)))


def random_tensors(rng):
    tensors = {}
    for _ in range(rng.randint(1, 12)):
        dtype = rng.choice(list(make_goldens.NUMPY_TYPES))
        shape = [rng.randint(0 if rng.random() < 0.1 else 1, 7) for _ in range(rng.randint(0, 3))]
        count = int(np.prod(shape)) if shape else 1
        kind = np.dtype(make_goldens.NUMPY_TYPES[dtype][1])
        raw = bytes(
            rng.getrandbits(1) if dtype == "BOOL" else rng.getrandbits(8)
            for _ in range(count * kind.itemsize)
        )
        tensors[random_name(rng)] = (dtype, np.frombuffer(raw, kind).reshape(shape).copy())
    return tensors


def random_config(rng):
    config = {"peft_type": "LORA"}
    number = lambda: rng.choice(
        [rng.randint(0, 4096), rng.uniform(-1e3, 1e3), 10 ** rng.uniform(-12, 8)]
    )  # noqa: E731
    if rng.random() < 0.9:
        config["r"] = rng.randint(1, 512)
        config["lora_alpha"] = number()
    config["target_modules"] = rng.choice(
        ["all-linear", None, [random_name(rng) for _ in range(rng.randint(0, 5))]]
    )
    config["exclude_modules"] = rng.choice([None, [], [random_name(rng)]])
    config["rank_pattern"] = {
        random_name(rng): rng.randint(1, 64) for _ in range(rng.randint(0, 3))
    }
    config["alpha_pattern"] = {random_name(rng): number() for _ in range(rng.randint(0, 3))}
    config["use_rslora"] = rng.random() < 0.3
    config["fan_in_fan_out"] = rng.random() < 0.1
    config["layers_to_transform"] = rng.choice([None, 3, [5, 2, 2]])
    return config


def main():
    rng = random.Random(20261121)
    tool = subprocess.Popen(
        [sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    for case in range(CASES):
        tensors, config = random_tensors(rng), random_config(rng)
        metadata = rng.choice([None, {}, {"format": "pt"}, {random_name(rng): random_name(rng)}])
        image = make_goldens.save(tensors, metadata)
        canonical = reference.canonical_config(config)
        expected = {
            "header": image[: 8 + int.from_bytes(image[:8], "little")].hex(),
            "canonical": canonical,
            "digest": reference.digest(image, canonical),
            "error": "",
        }
        specs = [
            {"name": name, "dtype": dtype, "shape": list(array.shape)}
            for name, (dtype, array) in tensors.items()
        ]
        question = {
            "tensors": specs,
            "metadata": metadata,
            "config": json.dumps(config),
            "image": image.hex(),
        }
        tool.stdin.write(json.dumps(question) + "\n")
        tool.stdin.flush()
        answer = json.loads(tool.stdout.readline())
        if answer != expected:
            for key in expected:
                if answer.get(key) != expected[key]:
                    print(f"case {case}: {key}")
                    print(f"  expected {expected[key]}\n  got      {answer.get(key)}")
            return 1
    tool.stdin.close()
    print(f"{CASES} random images, configs and digests are equal")
    return tool.wait()


if __name__ == "__main__":
    sys.exit(main())
