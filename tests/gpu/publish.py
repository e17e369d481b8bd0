"""What a publish costs a trainer on a GPU: packed there, and copied tensor by tensor, in turn. Medians of 15.

    PYTHONPATH=clients/python/src python tests/gpu/publish.py build/release/bin/liblorry_gpu.so

`call`: the trainer's thread is in publish (laying out and queueing). `held`: its stream does nothing of its own. `there`: all bytes
are in the host's memory, looked at and hashed.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
import xxhash

from lorry.gpu import LEAF_BYTES, Packer
from lorry.image import BufferPool, build

ROUNDS = 15
BYTES = 200_000_000


def adapter(tensors: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    width = BYTES // tensors // 16 // dtype.itemsize
    names = (f"base_model.model.model.layers.{n // 8}.self_attn.{'qkvo'[n // 2 % 4]}_proj.lora_{'AB'[n % 2]}.weight" for n in range(tensors))
    return {name: torch.randn((16, width) if "lora_A" in name else (width, 16), device="cuda").to(dtype) for name in names}


def publish(state: dict[str, torch.Tensor], pool: BufferPool, packer: Packer | None, dtype: str | None) -> tuple[float, float, float]:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    began = time.perf_counter()
    begin.record()
    image = build(state, 0, 1, pool, dtype=dtype, packer=packer)
    end.record()
    called = time.perf_counter()
    image.check()
    image.wait(image.data.nbytes)
    if image.leaves() is None:
        for at in range(0, image.data.nbytes, LEAF_BYTES):
            xxhash.xxh3_128_digest(image.data[at : at + LEAF_BYTES].data)
    there = time.perf_counter()
    end.synchronize()
    image.close()
    pool.give(image.buffer)
    return called - began, begin.elapsed_time(end) / 1e3, there - began


def main() -> None:
    packer = Packer(sys.argv[1])
    print(f"{torch.cuda.get_device_name()}, 200 MB of an adapter, milliseconds, medians of {ROUNDS}")
    print(f"{'':42}{'call':>9}{'held':>9}{'there':>9}")
    for tensors, source, cast in ((448, torch.bfloat16, None), (448, torch.float32, "bfloat16"), (20_000, torch.bfloat16, None)):
        state = adapter(tensors, source)
        took: dict[str, list[tuple[float, float, float]]] = {"packed": [], "copied": []}
        pools = {way: BufferPool() for way in took}
        for _ in range(ROUNDS + 1):
            for way, by in (("packed", packer), ("copied", None)):
                took[way].append(publish(state, pools[way], by, cast))
        for way, rounds in took.items():
            medians = [statistics.median(times) * 1e3 for times in zip(*rounds[1:], strict=True)]
            name = f"{tensors} tensors, {str(source).removeprefix('torch.')}{' to bfloat16' if cast else ''}"
            print(f"{name:34}{way:8}" + "".join(f"{value:9.2f}" for value in medians), flush=True)


if __name__ == "__main__":
    main()
