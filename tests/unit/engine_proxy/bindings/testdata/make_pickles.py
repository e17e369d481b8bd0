#!/usr/bin/env python3
"""Writes torch_pickles.json: what torch itself makes of an adapter's tensors, with the safetensors file of the same tensors beside it,
and what must be refused, some of it by torch and some of it by hand. `pickle` and `image` are in base64.

    .venv/dev/bin/python tests/unit/engine_proxy/bindings/testdata/make_pickles.py

torch writes addresses into its pickles, so that these differ from run to run where nothing else does. What tensors of a GPU become is
made where torch has one, and otherwise kept as it is.
"""

from __future__ import annotations

import base64
import io
import json
import pathlib
import pickle
import struct
import sys
import types
from collections import OrderedDict
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from safetensors.torch import save

HERE = pathlib.Path(__file__).parent
MODULE = "base_model.model.model.layers.0.self_attn.q_proj"
A, B = f"{MODULE}.lora_A.weight", f"{MODULE}.lora_B.weight"


@dataclass
class FlattenedTensorMetadata:
    """SGLang's class of this name, by its fields."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    start_idx: int
    end_idx: int
    numel: int


def as_sglangs(cls: type) -> None:
    """Pickled under the name that SGLang's has."""
    module = types.ModuleType("sglang.srt.weight_sync.tensor_bucket")
    cls.__module__ = module.__name__
    setattr(module, cls.__name__, cls)
    for name in ("sglang", "sglang.srt", "sglang.srt.weight_sync"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[module.__name__] = module


def bucket(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """As SGLang's FlattenedTensorBucket lays them out."""
    metadata, at = [], 0
    rows = [tensor.flatten().view(torch.uint8) for tensor in tensors.values()]
    for (name, tensor), row in zip(tensors.items(), rows, strict=True):
        metadata.append(FlattenedTensorMetadata(name, tensor.shape, tensor.dtype, at, at + row.numel(), row.numel()))
        at += row.numel()
    return {"flattened_tensor": torch.cat(rows), "metadata": metadata}


def forked(value: object) -> bytes:
    """As SGLang's MultiprocessingSerializer and torch.multiprocessing write it."""
    out = io.BytesIO()
    ForkingPickler(out).dump(value)
    return out.getvalue()


def pair(dtype: torch.dtype = torch.float32, first: int = 0) -> dict[str, torch.Tensor]:
    a = torch.arange(first, first + 8, dtype=torch.float32).reshape(2, 4).to(dtype)
    b = torch.arange(first + 10, first + 16, dtype=torch.float32).reshape(3, 2).to(dtype)
    return {A: a, B: b}


class Says:
    """Pickled as a call of `callee` with `arguments`."""

    def __init__(self, callee: object, *arguments: object) -> None:
        self.said = (callee, arguments)

    def __reduce__(self) -> Any:
        return self.said


def accepted() -> list[dict[str, Any]]:
    plain, strided = pair(), pair()
    wide = torch.arange(100, dtype=torch.float32).reshape(10, 10)
    views = {A: wide[3:5, 2:6], B: wide[:2, :3].t()}
    shared = torch.ones(2, 4)
    layers = {f"{MODULE[:-6]}{name}.lora_A.weight": shared for name in ("q_proj", "k_proj", "v_proj")}
    strided[B] = torch.tensor([1.0, 2.0]).expand(3, 2)
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in plain.items()}
    named = {name.replace(".weight", ".default.weight"): tensor for name, tensor in pair(torch.float16).items()}
    rows = [
        *((f"protocol_{n}", pickle.dumps(plain, protocol=n), plain) for n in (3, 4, 5)),
        ("bf16", pickle.dumps(pair(torch.bfloat16)), pair(torch.bfloat16)),
        ("f64", pickle.dumps(pair(torch.float64)), pair(torch.float64)),
        ("default_names_f16", pickle.dumps(named), named),
        ("ordered", pickle.dumps(OrderedDict(plain)), plain),
        ("parameters", pickle.dumps(parameters), plain),
        ("views", pickle.dumps(views), views),
        ("rows_of_one", pickle.dumps(strided), strided),
        ("shared", pickle.dumps(layers), layers),
        ("no_elements", pickle.dumps({A: torch.empty(0, 4), B: torch.tensor(1.0)}), {A: torch.empty(0, 4), B: torch.tensor(1.0)}),
    ]
    made = [{"name": name, "bucket": False, "pickle": dumped, "image": tensors} for name, dumped, tensors in rows]
    mixed = pair(torch.bfloat16) | {"x.lora_A.weight": torch.ones(3)}
    for name, tensors in (("bucket", plain), ("bucket_mixed", mixed)):
        made.append({"name": name, "bucket": True, "pickle": pickle.dumps(bucket(tensors)), "image": tensors})
    if torch.cuda.is_available():
        made += [{"name": name, "bucket": False, "pickle": dumped, "image": tensors} for name, dumped, tensors in on_a_gpu()[0]]
    for row in made:
        # Each on memory of its own, as safetensors asks for.
        copies = {name: tensor.detach().clone().contiguous() for name, tensor in row["image"].items()}
        row["image"] = save(copies, metadata={"format": "pt"})
    return made


def by_torch() -> list[tuple[str, bytes, str]]:
    """Refused, though torch wrote it: name, pickle, reason."""
    import os

    import torch.multiprocessing.reductions as reductions

    on_gpu = Says(reductions.rebuild_cuda_tensor, torch.Tensor, (2, 4), (4, 1), 0, torch.storage.UntypedStorage, torch.float32, 0, b"h" * 64,
                  32, 0, False, b"/torch_1_2_3", 0, b"e" * 64, True)
    descriptors = forked(pair())
    torch.multiprocessing.set_sharing_strategy("file_system")
    sparse = torch.tensor([[1.0, 0.0]]).to_sparse()
    negated = torch.tensor([1j + 2]).conj().imag  # when it is read
    return [
        ("on_a_gpu", pickle.dumps({A: on_gpu}), "TENSORS_ELSEWHERE"),
        ("descriptors", descriptors, "TENSORS_ELSEWHERE"),
        ("shared_files", forked(pair()), "TENSORS_ELSEWHERE"),
        ("sparse", pickle.dumps({A: sparse}), "TENSORS_INVALID"),
        ("negated", pickle.dumps({A: negated}), "TENSORS_INVALID"),
        ("bytes_by_latin_1", pickle.dumps(pair(), protocol=2), "TENSORS_INVALID"),
        ("integers", pickle.dumps({A: torch.ones(2, dtype=torch.int64)}), "TENSORS_INVALID"),
        ("numpy", pickle.dumps({A: torch.ones(2).numpy()}), "TENSORS_INVALID"),
        ("list", pickle.dumps([torch.ones(2)]), "TENSORS_INVALID"),
        ("numbers", pickle.dumps({A: 3}), "TENSORS_INVALID"),
        ("names_of_no_text", pickle.dumps({3: torch.ones(2)}), "TENSORS_INVALID"),
        ("system", pickle.dumps({A: Says(os.system, "touch /tmp/never")}), "TENSORS_INVALID"),
        ("eval", pickle.dumps({A: Says(eval, "1")}), "TENSORS_INVALID"),
        ("torch_load", pickle.dumps({A: Says(torch.load, "/etc/passwd")}), "TENSORS_INVALID"),
    ]


def on_a_gpu() -> tuple[list[tuple[str, bytes, Any]], list[tuple[str, bytes, str]]]:
    """Accepted and refused, as by the others: pickle copies a GPU's bytes, torch.multiprocessing hands on where they lie."""
    here = {dtype: pair(dtype) for dtype in (torch.float32, torch.bfloat16)}
    there = {dtype: {name: tensor.cuda() for name, tensor in tensors.items()} for dtype, tensors in here.items()}
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in there[torch.float32].items()}
    good = [
        ("gpu_f32", pickle.dumps(there[torch.float32]), here[torch.float32]),
        ("gpu_bf16", pickle.dumps(there[torch.bfloat16]), here[torch.bfloat16]),
        ("gpu_parameters", pickle.dumps(parameters), here[torch.float32]),
    ]
    bad = [
        ("gpu_handles", forked(there[torch.float32]), "TENSORS_ELSEWHERE"),
        ("gpu_handles_of_parameters", forked(parameters), "TENSORS_ELSEWHERE"),
        ("gpu_handles_of_a_bucket", forked(bucket(there[torch.bfloat16])), "TENSORS_ELSEWHERE"),
    ]
    return good, bad


def changed(replace: bytes, by: bytes) -> bytes:
    """One good tensor's pickle with some bytes exchanged."""
    whole = pickle.dumps({A: torch.arange(6, dtype=torch.float32).reshape(2, 3)}, protocol=4)
    assert replace in whole, replace
    return whole.replace(replace, by)


def by_hand() -> list[tuple[str, bytes, str]]:
    shape, strides = b"K\x02K\x03\x86", b"K\x03K\x01\x86"
    row = torch.ones(400)
    laughs = b"\x80\x04(" + b")\x94" + b"".join(b"(" + (b"h" + bytes([level])) * 10 + b"t\x94" for level in range(200)) + b"t."
    return [
        ("empty", b"", "TENSORS_INVALID"),
        ("no_pickle", b"PK\x03\x04", "TENSORS_INVALID"),
        ("protocol_0", b"cos\nsystem\n(S'true'\ntR.", "TENSORS_INVALID"),
        ("inst", b"\x80\x02(ios\nsystem\n.", "TENSORS_INVALID"),
        ("obj", b"\x80\x02(X\x04\x00\x00\x00trueo.", "TENSORS_INVALID"),
        ("build", b"\x80\x02}X\x01\x00\x00\x00a}b.", "TENSORS_INVALID"),
        ("build_nothing", b"\x80\x02cos\nenviron\n}b.", "TENSORS_INVALID"),
        ("newobj_ex", b"\x80\x04)}\x92.", "TENSORS_INVALID"),
        ("extension", b"\x80\x02\x82\x01.", "TENSORS_INVALID"),
        ("persistent_text", b"\x80\x02P1\n.", "TENSORS_INVALID"),
        ("buffer", b"\x80\x05\x97.", "TENSORS_INVALID"),
        ("call_of_text", b"\x80\x04\x8c\x01a)R.", "TENSORS_INVALID"),
        ("laughs", laughs, "TENSORS_INVALID"),
        ("in_itself", b"\x80\x04]\x94h\x00a.", "TENSORS_INVALID"),
        ("dict_in_itself", b"\x80\x04}\x94\x8c\x01ah\x00s.", "TENSORS_INVALID"),
        ("memo_far_away", b"\x80\x02}r\xff\xff\xff\xff.", "TENSORS_INVALID"),
        ("memo_of_nothing", b"\x80\x02q\x00.", "TENSORS_INVALID"),
        ("memo_unknown", b"\x80\x02h\x07.", "TENSORS_INVALID"),
        ("long", b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".", "TENSORS_INVALID"),
        ("long_4", b"\x80\x02\x8b\xff\xff\xff\x7f.", "TENSORS_INVALID"),
        ("text_too_long", b"\x80\x04\x8d" + b"\xff" * 8 + b"a.", "TENSORS_INVALID"),
        ("bytes_too_long", b"\x80\x04\x8e" + struct.pack("<Q", 2**63) + b"a.", "TENSORS_INVALID"),
        ("odd_items", b"\x80\x04}(K\x01u.", "TENSORS_INVALID"),
        ("below_the_mark", b"\x80\x04}K\x01(s.", "TENSORS_INVALID"),
        ("two_values", b"\x80\x04}}.", "TENSORS_INVALID"),
        ("something_behind", b"\x80\x04}.}", "TENSORS_INVALID"),
        ("larger_than_its_storage", changed(shape, b"K\x02K\x04\x86"), "TENSORS_INVALID"),
        ("far_strides", changed(strides, b"K\x03K\x02\x86"), "TENSORS_INVALID"),
        ("back_strides", changed(strides, b"J\xfd\xff\xff\xffK\x01\x86"), "TENSORS_INVALID"),
        ("negative_shape", changed(shape, b"J\xfe\xff\xff\xffK\x03\x86"), "TENSORS_INVALID"),
        ("strides_that_overflow", changed(strides, b"\x8a\x08" + b"\xff" * 7 + b"\x7fK\x01\x86"), "TENSORS_INVALID"),
        ("shape_that_overflows", changed(shape + b"\x94" + strides, b"\x8a\x06" + b"\0" * 5 + b"\1" + b"\x8a\x06" + b"\0" * 5 + b"\1\x86\x94K\x00K\x00\x86"),
         "TENSORS_INVALID"),
        ("repeated_in_itself", changed(shape + b"\x94" + strides, b"\x8a\x04\0\0\0\1K\x03\x86\x94K\x00K\x01\x86"), "TENSORS_INVALID"),
        ("too_many_dimensions", changed(shape + b"\x94" + strides, b"(" + b"K\x01" * 9 + b"t\x94(" + b"K\x01" * 9 + b"t"), "TENSORS_INVALID"),
        ("storage_says_more", changed(b"K\x06Ntq\x04Q.", b"K\x07Ntq\x04Q."), "TENSORS_INVALID"),
        ("storage_says_less", changed(b"K\x06Ntq\x04Q.", b"K\x05Ntq\x04Q."), "TENSORS_INVALID"),
        ("storage_of_absurd_size", changed(b"K\x06Ntq\x04Q.", b"K\xffNtq\x04Q."), "TENSORS_INVALID"),
        ("storage_with_a_view", changed(b"K\x06Ntq\x04Q.", b"K\x06)tq\x04Q."), "TENSORS_INVALID"),
        ("big_endian", changed(b"little_endianq\x02\x88", b"little_endianq\x02\x89"), "TENSORS_INVALID"),
        ("repeated", pickle.dumps({str(n): row for n in range(200)}), "TENSORS_INVALID"),
    ]


def main() -> None:
    as_sglangs(FlattenedTensorMetadata)

    def text(value: bytes) -> str:
        return base64.b64encode(value).decode()

    good = [row | {"pickle": text(row["pickle"]), "image": text(row["image"])} for row in accepted()]
    bad = [{"name": name, "bucket": False, "pickle": text(dumped), "reason": reason} for name, dumped, reason in by_torch() + by_hand()]
    row = bucket(pair())
    broken = {
        "bucket_of_floats": row | {"flattened_tensor": torch.ones(14)},
        "bucket_without_metadata": {"flattened_tensor": row["flattened_tensor"]},
        "bucket_is_a_dict": pair(),
        "bucket_of_strings": row | {"metadata": ["a"]},
    }
    wrong: dict[str, dict[str, Any]] = {
        "ends_early": {"end_idx": 31},
        "begins_late": {"start_idx": 2},
        "ends_far_away": {"end_idx": 1 << 40},
        "lies_behind": {"start_idx": 40, "end_idx": 72},
        "is_larger": {"shape": torch.Size([2, 5])},
        "has_a_type_of_text": {"dtype": "float32"},
        "has_no_name": {"name": 3},
    }
    for name, fields in wrong.items():
        metadata = [FlattenedTensorMetadata(**vars(row["metadata"][0]) | fields), *row["metadata"][1:]]
        broken[f"bucket_{name}"] = row | {"metadata": metadata}
    bad += [{"name": name, "bucket": True, "pickle": text(pickle.dumps(value)), "reason": "TENSORS_INVALID"} for name, value in broken.items()]
    kept = HERE / "torch_pickles.json"
    if torch.cuda.is_available():
        bad += [{"name": name, "bucket": "bucket" in name, "pickle": text(dumped), "reason": reason} for name, dumped, reason in on_a_gpu()[1]]
    else:
        before = json.loads(kept.read_text())
        good, bad = (rows + [row for row in before[key] if row["name"].startswith("gpu_")]
                     for key, rows in (("accepted", good), ("refused", bad)))
    kept.write_text(json.dumps({"accepted": good, "refused": bad}, indent=1) + "\n")


if __name__ == "__main__":
    main()
