"""What lib/peft/config.h and digest.h specify, read independently, to compare with."""

import hashlib
import json
import struct

import xxhash

LEAF_BYTES = 1 << 20


def number(value):
    """Whole numbers below 2**53 without a fraction, everything else as repr() writes it."""
    value = float(value)
    if value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return repr(value)


def text(value):
    return json.dumps(value, ensure_ascii=False)


def names(value):
    if isinstance(value, str) and value:
        return text(value)
    return "[" + ",".join(text(name) for name in sorted(set(value or []), key=str.encode)) + "]"


def pattern(value):
    rows = sorted((value or {}).items(), key=lambda row: row[0].encode())
    return "{" + ",".join(f"{text(key)}:{number(val)}" for key, val in rows) + "}"


def canonical_config(fields):
    """The canonical form of a config that is known to be a plain LoRA."""
    layers = fields.get("layers_to_transform")
    layers = [layers] if isinstance(layers, (int, float)) else layers or []
    layers_pattern = fields.get("layers_pattern") or []
    layers_pattern = [layers_pattern] if isinstance(layers_pattern, str) else layers_pattern
    rows = {
        "alpha_pattern": pattern(fields.get("alpha_pattern")),
        "bias": '"none"',
        "exclude_modules": names(fields.get("exclude_modules")),
        "fan_in_fan_out": "true" if fields.get("fan_in_fan_out") else "false",
        "layers_pattern": names(layers_pattern),
        "layers_to_transform": "["
        + ",".join(str(n) for n in sorted({int(n) for n in layers}))
        + "]",
        "lora_alpha": number(fields.get("lora_alpha", 8)),
        "modules_to_save": "[]",
        "peft_type": '"LORA"',
        "r": str(int(fields.get("r", 8))),
        "rank_pattern": pattern(fields.get("rank_pattern")),
        "target_modules": names(fields.get("target_modules")),
        "use_dora": "false",
        "use_rslora": "true" if fields.get("use_rslora") else "false",
    }
    return "{" + ",".join(f"{text(key)}:{value}" for key, value in sorted(rows.items())) + "}"


def leaves(image):
    return [
        xxhash.xxh3_128_digest(image[at : at + LEAF_BYTES])
        for at in range(0, len(image), LEAF_BYTES)
    ]


def digest(image, canonical):
    preimage = (
        b"lorry.digest.v1\nxxh3-128\n" + struct.pack("<Q", len(image)) + b"".join(leaves(image))
    )
    return "sha256-xxh3:" + hashlib.sha256(preimage + canonical.encode()).hexdigest()
