#!/usr/bin/env python3
"""Writes the seeds in corpus/ from what the unit tests hold; found inputs are added by hand."""

import json
import pathlib
import re

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE.parent / "unit" / "peft" / "testdata"


def write(target, name, data):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def main():
    small = ("odd_names", "every_dtype", "lora_f16_bare", "empty_metadata")
    for name in small:
        write(
            "image_header",
            f"{name}.safetensors",
            (GOLDEN / "images" / f"{name}.safetensors").read_bytes(),
        )
    configs = json.loads((GOLDEN / "configs.json").read_text())
    for index, row in enumerate(configs):
        write("adapter_config", f"{index:02}.json", row["config"].encode())
    names = json.loads((GOLDEN / "names.json").read_text())
    for row in names:
        if row["sources"][0]["name"] and "base" in row:
            write(
                "adapter_config",
                "base_" + row["base"]["model_type"] + ".json",
                json.dumps(row["base"]).encode(),
            )
    lines = [[source["name"] for source in row["sources"]] for row in names]
    for index, row in enumerate(lines):
        write("tensor_names", f"{index:02}.txt", "\n".join(row).encode())
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["k_proj", "q_proj", "v_proj"],
    }
    for name in ("lora_f16_bare", "empty_metadata"):
        image = (GOLDEN / "images" / f"{name}.safetensors").read_bytes()
        write("adapter", name, json.dumps(config).encode() + b"\0" + image)
    zero = (GOLDEN / "images" / "lora_f16_bare.safetensors").read_bytes()
    begin = 8 + int.from_bytes(zero[:8], "little")
    write(
        "adapter",
        "all_zero",
        json.dumps(config).encode() + b"\0" + zero[:begin] + bytes(len(zero) - begin),
    )
    # A status (the first byte) and a body: the replies of real engines, as the unit tests of their reader quote them.
    replies = (HERE.parent / "unit" / "engine_proxy" / "engines" / "wire_test.cc").read_text()
    folder = HERE / "engines" / "corpus" / "engine_wire"
    folder.mkdir(parents=True, exist_ok=True)
    for index, body in enumerate(r for r in re.findall(r'R"\((.*?)\)"', replies, re.DOTALL) if len(r) > 40):
        (folder / f"{index:02}").write_bytes(b"0" + body.encode())


if __name__ == "__main__":
    main()
