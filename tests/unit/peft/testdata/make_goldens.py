#!/usr/bin/env python3
"""Writes the golden files of this folder, except names.json, which is written by hand.

    python -m venv .venv/golden && .venv/golden/bin/pip install safetensors==0.8.0 numpy ml_dtypes xxhash
    .venv/golden/bin/python tests/unit/peft/testdata/make_goldens.py

images/ comes from the safetensors package itself; configs.json and digests.json from ../reference.py.
"""

import hashlib
import json
import pathlib
import sys

import ml_dtypes
import numpy as np
from safetensors import TensorSpec, serialize

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import reference  # noqa: E402

NUMPY_TYPES = {  # the package's spelling in the header -> (its name of the dtype, numpy's)
    "BOOL": ("bool", np.bool_),
    "U8": ("uint8", np.uint8),
    "I8": ("int8", np.int8),
    "F8_E5M2": ("float8_e5m2", ml_dtypes.float8_e5m2),
    "F8_E4M3": ("float8_e4m3fn", ml_dtypes.float8_e4m3fn),
    "F8_E8M0": ("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
    "I16": ("int16", np.int16),
    "U16": ("uint16", np.uint16),
    "F16": ("float16", np.float16),
    "BF16": ("bfloat16", ml_dtypes.bfloat16),
    "I32": ("int32", np.int32),
    "U32": ("uint32", np.uint32),
    "F32": ("float32", np.float32),
    "C64": ("complex64", np.complex64),
    "F64": ("float64", np.float64),
    "I64": ("int64", np.int64),
    "U64": ("uint64", np.uint64),
}


def save(tensors, metadata):
    """tensors: name -> (dtype in the header, array)."""
    specs = {
        name: TensorSpec(
            dtype=NUMPY_TYPES[dtype][0],
            shape=list(array.shape),
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for name, (dtype, array) in tensors.items()
    }
    return bytes(serialize(specs, metadata))


def lora(rng, layers, dtype, hidden=16, rank=4):
    tensors = {}
    for layer in range(layers):
        for module, out in (("q_proj", hidden), ("k_proj", hidden // 2), ("v_proj", hidden // 2)):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for part, shape in (("A", (rank, hidden)), ("B", (out, rank))):
                array = rng.standard_normal(shape).astype(NUMPY_TYPES[dtype][1])
                tensors[f"{stem}.lora_{part}.weight"] = (dtype, array)
    return tensors


def images():
    rng = np.random.default_rng(7)
    mixed = lora(rng, 1, "F32") | {
        k.replace("layers.0", "layers.1"): v for k, v in lora(rng, 1, "BF16").items()
    }
    every = {f"t_{name}": (name, np.zeros((2, 3), kind)) for name, (_, kind) in NUMPY_TYPES.items()}
    odd = {
        "scalar": ("F32", np.array(1, np.float32)),
        "empty": ("F16", np.zeros((0, 3), np.float16)),
        "one byte": ("U8", np.ones((1,), np.uint8)),
        'quote " back \\ slash / tab \t nl \n bell \x07 del \x7f é \u2028 😀': (
            "F32",
            np.ones((2, 3), np.float32),
        ),
    }
    rows = []
    for name, tensors, metadata in (
        ("lora_f32", lora(rng, 2, "F32"), {"format": "pt"}),
        ("lora_bf16", lora(rng, 12, "BF16"), {"format": "pt"}),
        ("lora_f16_bare", lora(rng, 1, "F16"), None),
        ("mixed", mixed, {"format": "pt"}),
        ("every_dtype", every, {"format": "pt"}),
        ("odd_names", odd, {'na"me': "v\\al é\n"}),
        ("empty_metadata", lora(rng, 1, "F32"), {}),
    ):
        (HERE / "images" / f"{name}.safetensors").write_bytes(save(tensors, metadata))
        rows.append(
            {
                "file": f"{name}.safetensors",
                "metadata": metadata,
                "tensors": [
                    {"name": k, "dtype": d, "shape": list(a.shape)} for k, (d, a) in tensors.items()
                ],
            }
        )
    return rows


CONFIGS = [
    ("PEFT's defaults fill in what is absent", {"peft_type": "LORA", "target_modules": ["q_proj"]}),
    (
        "sets are sorted and each name is kept once",
        {
            "peft_type": "LORA",
            "r": 16,
            "lora_alpha": 32,
            "target_modules": ["v_proj", "q_proj", "k_proj", "q_proj"],
        },
    ),
    (
        "16 and 16.0 are one number",
        {"peft_type": "LORA", "r": 8.0, "lora_alpha": 16.0, "target_modules": []},
    ),
    (
        "fractions have the shortest digits",
        {"peft_type": "LORA", "lora_alpha": 22.627416997969522, "target_modules": ["q_proj"]},
    ),
    (
        "small numbers have an exponent",
        {"peft_type": "LORA", "lora_alpha": 1e-05, "target_modules": ["q_proj"]},
    ),
    ("0.0001 has none", {"peft_type": "LORA", "lora_alpha": 0.0001, "target_modules": ["q_proj"]}),
    ("minus zero is zero", {"peft_type": "LORA", "lora_alpha": -0.0, "target_modules": ["q_proj"]}),
    ("negative fractions", {"peft_type": "LORA", "lora_alpha": -0.1, "target_modules": ["q_proj"]}),
    ("rsLoRA counts", {"peft_type": "LORA", "use_rslora": True, "target_modules": ["q_proj"]}),
    (
        "patterns are sorted by bytes",
        {
            "peft_type": "LORA",
            "target_modules": ["q_proj", "v_proj"],
            "rank_pattern": {"v_proj": 4, "q_proj": 16, "Z": 2},
            "alpha_pattern": {"layers.1.q_proj": 1.5, "layers.0.q_proj": 3},
        },
    ),
    ("an expression stays one", {"peft_type": "LORA", "target_modules": "all-linear"}),
    (
        "names keep their UTF-8",
        {"peft_type": "LORA", "target_modules": ['é"\\\n\u0001', "😀", "\uff5e", "a"]},
    ),
    (
        "a single layer is a list",
        {
            "peft_type": "LORA",
            "target_modules": ["q_proj"],
            "layers_to_transform": 3,
            "layers_pattern": "layers",
        },
    ),
    (
        "layers are sorted as numbers",
        {
            "peft_type": "LORA",
            "target_modules": ["q_proj"],
            "layers_to_transform": [10, 9, 9, 0],
            "exclude_modules": ["lm_head"],
        },
    ),
    (
        "training and bookkeeping do not count",
        {
            "peft_type": "LORA",
            "target_modules": ["q_proj"],
            "r": 8,
            "lora_alpha": 8,
            "lora_dropout": 0.1,
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": "/models/tiny",
            "inference_mode": True,
            "init_lora_weights": "gaussian",
            "revision": "main",
            "peft_version": "0.21.2",
            "auto_mapping": {"a": 1},
            "megatron_core": "megatron.core",
            "loftq_config": {},
            "qalora_group_size": 16,
            "use_dora": False,
            "bias": "none",
            "modules_to_save": None,
            "fan_in_fan_out": False,
            "a_field_of_tomorrow": None,
        },
    ),
    (
        "every field as PEFT 0.21 saves it",
        {
            "alora_invocation_tokens": None,
            "alpha_pattern": {},
            "arrow_config": None,
            "auto_mapping": None,
            "base_model_name_or_path": "/models/tiny",
            "bias": "none",
            "corda_config": None,
            "ensure_weight_tying": False,
            "eva_config": None,
            "exclude_modules": None,
            "fan_in_fan_out": False,
            "inference_mode": True,
            "init_lora_weights": True,
            "kasa_config": None,
            "layer_replication": None,
            "layers_pattern": None,
            "layers_to_transform": None,
            "loftq_config": {},
            "lora_alpha": 32,
            "lora_bias": False,
            "lora_dropout": 0.0,
            "lora_ga_config": None,
            "megatron_config": None,
            "megatron_core": "megatron.core",
            "modules_to_save": None,
            "monteclora_config": None,
            "peft_type": "LORA",
            "peft_version": "0.21.2",
            "qalora_group_size": 16,
            "r": 16,
            "rank_pattern": {},
            "revision": None,
            "target_modules": ["v_proj", "q_proj"],
            "target_parameters": None,
            "task_type": "CAUSAL_LM",
            "trainable_token_indices": None,
            "use_bdlora": None,
            "use_dora": False,
            "use_qalora": False,
            "use_rslora": False,
            "velora_config": None,
        },
    ),
    (
        "fan_in_fan_out counts",
        {"peft_type": "LORA", "target_modules": ["c_attn"], "fan_in_fan_out": True},
    ),
]


def configs():
    rows = []
    for why, fields in CONFIGS:
        canonical = reference.canonical_config(fields)
        rows.append(
            {
                "why": why,
                "config": json.dumps(fields),
                "canonical": canonical,
                "sha256": hashlib.sha256(canonical.encode()).hexdigest(),
            }
        )
    return rows


def pattern_bytes(length):
    """Byte i is (i * 31 + (i >> 8)) % 251: cheap to make in any language."""
    i = np.arange(length, dtype=np.uint64)
    return ((i * 31 + (i >> 8)) % 251).astype(np.uint8).tobytes()


def digests():
    canonical = reference.canonical_config(CONFIGS[1][1])
    rows = []
    for length in (
        0,
        1,
        16,
        240,
        241,
        4096,
        (1 << 20) - 1,
        1 << 20,
        (1 << 20) + 1,
        3 * (1 << 20) + 12345,
    ):
        image = pattern_bytes(length)
        rows.append(
            {
                "image_bytes": length,
                "leaves": [leaf.hex() for leaf in reference.leaves(image)],
                "canonical": canonical,
                "digest": reference.digest(image, canonical),
            }
        )
    return rows


def main():
    for name, rows in (("images", images()), ("configs", configs()), ("digests", digests())):
        (HERE / f"{name}.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
