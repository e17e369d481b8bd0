#!/usr/bin/env python3
"""Writes corpus/foreign_directory: trees of files and what a framework names in them, as commands (see README.md); and
corpus/tensor_pickle: the pickles of the unit tests, each behind the byte that says how its tensors are laid out."""

import base64
import json
import pathlib

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "corpus" / "foreign_directory"
PICKLE_FOLDER = HERE / "corpus" / "tensor_pickle"
NAMES = HERE.parent.parent / "unit" / "peft" / "testdata" / "names.json"
PICKLES = HERE.parent.parent / "unit" / "engine_proxy" / "bindings" / "testdata" / "torch_pickles.json"
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
ITEM = {"F32": 4, "F16": 2, "BF16": 2}


def text(value):
    """JSON without blanks."""
    return json.dumps(value, separators=(",", ":"))


def header(tensors, dtype="F32"):
    """Of a safetensors file with these shapes by name."""
    out, at = {}, 0
    for name, shape in tensors.items():
        size = ITEM[dtype]
        for side in shape:
            size *= side
        out[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return text(out)


MODULE = "base_model.model.model.layers.0.self_attn.q_proj"
IMAGE = header({f"{MODULE}.lora_A.weight": [2, 16], f"{MODULE}.lora_B.weight": [16, 2]})
BASE = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 64}


def adapter(folder="root/a", config=None, image=IMAGE):
    """Commands that write one."""
    return [f"D0{folder}", f"F0{folder}/adapter_config.json {text(config or CONFIG)}", f"I0{folder}/adapter_model.safetensors {image}"]


ASK = "R0root/a"
GOOD = adapter()
SCRIPTS = {
    "good": [*GOOD, ASK],
    "good_for_vllm": [*GOOD, "V0", f"B0{text(BASE)}", ASK],
    "rslora": [*adapter(config=CONFIG | {"use_rslora": True}), ASK],
    "bf16": [*adapter(image=header({f"{MODULE}.lora_A.weight": [2, 16], f"{MODULE}.lora_B.weight": [16, 2]}, "BF16")), ASK],
    "absent": ["D0root/a", ASK],
    "no_image": [*GOOD[:2], ASK],
    "pipe": [*GOOD[:2], "P0root/a/adapter_model.safetensors", ASK],
    "directory": [*GOOD[:2], "D0root/a/adapter_model.safetensors", ASK],
    "too_large": [*GOOD[:2], "G0root/a/adapter_model.safetensors 1099511627776", ASK],
    "config_too_large": ["D0root/a", "G0root/a/adapter_config.json 2097152", GOOD[2], ASK],
    "truncated": [*GOOD[:2], "F0root/a/adapter_model.safetensors \x10\0\0\0\0\0\0\0{}", ASK],
    "empty": [*GOOD[:2], "F0root/a/adapter_model.safetensors ", ASK],
    "linked": ["D0root/s", "D0root/b", f"F0root/b/1 {text(CONFIG)}", f"I0root/b/2 {IMAGE}", "L0root/s/adapter_config.json ../b/1",
               "L0root/s/adapter_model.safetensors ../b/2", "R0root/s"],
    "linked_folder": [*GOOD, "L0root/s a", "R0root/s"],
    "dots": [*GOOD, "D0root/b", "R0root/b/../a/./"],
    "out_by_dots": ["R0root/../elsewhere/a"],
    "out_by_link": ["L0root/a ../elsewhere/a", ASK],
    "out_by_absolute_link": [*GOOD[:2], "L1root/a/adapter_model.safetensors elsewhere/a/adapter_model.safetensors", ASK],
    "elsewhere": ["R0elsewhere/a"],
    "loop": ["L0root/a a", ASK],
    "process": ["L0root/a /proc/self/fd/0", ASK],
    "hub_name": ["R1meta-llama/Llama"],
    "long_path": ["R0root/\x01l"],
    "nul": [*GOOD, "R0root/a\0/b"],
    "written_anew": [*GOOD, "W0", f"F0root/a/adapter_config.json {text(CONFIG | {'r': 3})}", ASK],
    "image_written_anew": [*GOOD, "W0", f"I0root/a/adapter_model.safetensors {IMAGE.replace('q_proj', 'k_proj')}", ASK],
    "renamed_over": [*GOOD, "D0root/b", f"I0root/b/x {IMAGE.replace('q_proj', 'k_proj')}", "W0", "M0root/b/x root/a/adapter_model.safetensors",
                     ASK],
    "removed": [*GOOD, "W0", "X0root/a/adapter_model.safetensors", ASK],
    "swapped_for_a_link": [*GOOD, "W0", "M0root/a root/b", "L0root/a ../elsewhere/a", ASK],
}


def main():
    """Besides these, each row of the golden names whose tensors have shapes."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for index, row in enumerate(json.loads(NAMES.read_text())):
        shapes = {source["name"]: source["shape"] for source in row["sources"] if source.get("shape")}
        if not shapes or "base" not in row:
            continue
        config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
        stacked = [name for name in shapes if ".experts." in name]
        if stacked:
            config |= {"target_modules": [], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
        SCRIPTS[f"names_{index:02}"] = [*adapter(config=config, image=header(shapes)), f"B0{text(row['base'])}", ASK]
    for name, commands in SCRIPTS.items():
        (FOLDER / name).write_bytes("\x1e".join(commands).encode("latin-1"))
    PICKLE_FOLDER.mkdir(parents=True, exist_ok=True)
    for rows in json.loads(PICKLES.read_text()).values():
        for row in rows:
            (PICKLE_FOLDER / row["name"]).write_bytes(bytes([row["bucket"]]) + base64.b64decode(row["pickle"]))


if __name__ == "__main__":
    main()
