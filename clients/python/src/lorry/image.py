"""The adapter image: the exact bytes of ``adapter_model.safetensors``, laid out once in the trainer's memory.

The layout is that of the ``safetensors`` package 0.8: dtype descending, then name; compact JSON; spaces up to a
multiple of 8. ``tests/test_image.py`` compares the bytes.
"""

from __future__ import annotations

import functools
import json
import math
import mmap
import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from lorry.errors import Refused
from lorry.gpu import LEAF_BYTES, Packer, Packing, Part
from lorry.names import Planned, plan

Bytes = npt.NDArray[np.uint8]

# safetensors' own order of dtypes, ascending; an image lists them descending.
_DTYPES = {"F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8}
_ORDER = list(_DTYPES)
_TORCH = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
_NUMPY = {"float32": "F32", "float16": "F16", "float64": "F64", "bfloat16": "BF16"}


@dataclass(frozen=True)
class Shard:
    """This rank's part of a tensor.

    Args:
        local: the part, a torch tensor or numpy array.
        global_shape: shape of the whole tensor, e.g. ``(r, in_features)``.
        offset: index of the part's first element in the whole, one number a dimension.
        replica: where several ranks hold the same part (HSDP), which of them this is and how many there are: they take
            turns at sending, tensor by tensor.
    """

    local: Any
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    replica: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as a safetensors file holds it: no package beside numpy is needed to carry it, whatever its type."""

    dtype: str  # "BF16"
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Piece:
    """Bytes ``[offset, offset + length)`` of the image that this rank fills."""

    offset: int
    length: int


@dataclass
class Image:
    """An image, or this rank's part of one.

    Attributes:
        header: the image's first bytes, the same on every rank.
        buffer: the whole image; only ``pieces`` (and the header) hold meaning.
        pieces: what this rank has to send, sorted, coalesced.
        target_modules: the config's, as the image's names have them.
        unstacked: fused modules or stacked experts were taken apart (:class:`lorry.names.Plan`).
        packing: what still brings the bytes from a GPU; ``wait`` before they are read.
    """

    header: bytes
    buffer: Buffer
    pieces: list[Piece]
    target_modules: list[str]
    unstacked: bool
    packing: Packing | None = None

    @property
    def data(self) -> Bytes:
        """Of ``buffer``."""
        return self.buffer.data

    def check(self) -> None:
        """Waits until the values are known, where they are looked at here.

        Raises:
            Refused: some are NaN or infinite.
        """
        if self.packing is not None:
            self.packing.check()

    def wait(self, end: int) -> int:
        """Waits until this rank's bytes before ``end`` are in ``buffer``; returns up to where they are."""
        return self.data.nbytes if self.packing is None else self.packing.wait(end)

    def checksum(self, begin: int, end: int) -> bytes:
        """XXH3-128 of bytes of this rank, which lie within one leaf."""
        known = None
        if self.packing is not None and begin % LEAF_BYTES == 0 and end == min(begin + LEAF_BYTES, self.data.nbytes):
            known = self.packing.leaf(begin // LEAF_BYTES)
        if known is not None:
            return known
        self.wait(end)
        return xxhash.xxh3_128_digest(self.data[begin:end].data)

    def leaves(self) -> bytes | None:
        """The checksums of all leaves, where a GPU computed them and all of the image is this rank's; saves hashing them again."""
        size = self.data.nbytes
        if self.packing is None or self.pieces != [Piece(len(self.header), size - len(self.header))]:
            return None
        return b"".join(self.checksum(at, min(at + LEAF_BYTES, size)) for at in range(0, size, LEAF_BYTES))

    def cancel(self) -> None:
        """Ends waits for what a GPU brings: they raise Cancelled."""
        if self.packing is not None:
            self.packing.cancel()

    def close(self) -> None:
        """Nothing is written to ``buffer`` any more."""
        if self.packing is not None:
            self.packing.close()

    def release(self) -> Buffer:
        """As ``close``, and gives the memory up: whoever holds the image for longer, as the traceback of an error does, holds none."""
        self.close()
        buffer, self.buffer = self.buffer, Buffer(0, shared=False)
        return buffer


class Buffer:
    """Memory for one image.

    Args:
        size: bytes; their content may be any.
        shared: another process is to read it by its ``path``.

    Attributes:
        data: the bytes.
        path: where a process of the same user finds them while this one lives; None where nobody can.
    """

    def __init__(self, size: int, shared: bool) -> None:
        self.path: str | None = None
        self.data: Bytes = np.empty(0 if shared else size, dtype=np.uint8)
        if not shared:
            return
        fd = os.memfd_create("lorry-image")
        weakref.finalize(self, os.close, fd)
        os.ftruncate(fd, size)
        self.data = np.frombuffer(mmap.mmap(fd, size), dtype=np.uint8)
        self.path = f"/proc/{os.getpid()}/fd/{fd}"


class BufferPool:
    """Keeps the buffers of past images: the same adapter has the same size at every step, and touching
    fresh pages costs more than the copy (measured: 1.9 GB/s against 12).

    Args:
        keep: how many that nobody uses.
        shared_from: images of so many bytes and more are laid out where other processes find them; None: none are.
    """

    def __init__(self, keep: int = 2, shared_from: int | None = None) -> None:
        self._keep = keep
        self._shared_from = shared_from
        self._free: list[Buffer] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> Buffer:
        """A buffer of exactly ``size`` bytes with any content."""
        with self._lock:
            for i, buffer in enumerate(self._free):
                if buffer.data.nbytes == size:
                    return self._free.pop(i)
        shared = self._shared_from is not None and size >= max(self._shared_from, 1)
        return Buffer(size, shared and hasattr(os, "memfd_create"))

    def give(self, buffer: Buffer) -> None:
        """Gives a buffer back that nobody reads any more."""
        with self._lock:
            self._free = [*self._free[-(self._keep - 1) :], buffer]


def build(
    state: Mapping[str, Any], rank: int, world_size: int, pool: BufferPool, metadata: Mapping[str, str] | None = None,
    base: Mapping[str, Any] | None = None, dtype: str | None = None, packer: Packer | None = None,
) -> Image:
    """Lays out ``state`` and copies this rank's part of it.

    Args:
        state: name → torch tensor, numpy array, DTensor or Shard; names as PEFT saves them or as the
            wrapped model has them (prefixes and ``.default.`` are stripped).
        rank, world_size: tensors that are whole on every rank are dealt out by turns, so that no rank sends
            for the others.
        metadata: for the header, beside safetensors' own ``format``; the same on every rank.
        base: the fields of the base model's config.json, by which fused and stacked modules are taken apart.
        dtype: "bfloat16" to cast what is float32 or float16.
        packer: copies the tensors where they are all on its GPU.

    Raises:
        Refused: not a tensor state dict of a plain LoRA, or two names that mean one tensor.
    """
    sources = {name: _as_shard(value, (rank, world_size)) for name, value in state.items()}
    for name, shard in sources.items():
        _refuse_absent(name, shard)
    planned = plan({name: shard.global_shape for name, shard in sources.items()}, base)
    shards = {tensor.name: _casting(_part(sources[tensor.source], tensor), dtype) for tensor in planned.tensors}
    if not shards:
        raise Refused("the state dict has no tensors", "TENSOR_UNKNOWN", "INVALID_ARGUMENT")
    names = sorted(shards, key=lambda n: (-_ORDER.index(_dtype(shards[n].local)), n))
    header, offsets = _header(names, shards, metadata or {})
    last = shards[names[-1]]
    buffer = pool.take(offsets[names[-1]] + _bytes_of(last))
    data = buffer.data
    data[: len(header)] = np.frombuffer(header, dtype=np.uint8)
    mine = {name: shards[name] for index, name in enumerate(names) if index % shards[name].replica[1] == shards[name].replica[0]}
    packing, pieces = _pack(packer, mine, offsets, data.nbytes) if packer is not None else (None, [])
    if packing is None:
        pieces = _coalesce([piece for name, shard in mine.items() for piece in _copy(data, offsets[name], shard)])
    else:
        packing.start(data, [(piece.offset, piece.offset + piece.length) for piece in pieces])
    return Image(header, buffer, pieces, planned.target_modules, planned.unstacked, packing)


def _pack(packer: Packer, shards: Mapping[str, Shard], offsets: Mapping[str, int], size: int) -> tuple[Packing | None, list[Piece]]:
    """What brings the bytes, and where they go in the image."""
    parts, pieces = [], []
    for name, shard in shards.items():
        shape = np.shape(shard.local)
        if shape[1:] != tuple(shard.global_shape[1:]):
            return None, []  # its rows are apart in the image
        if 0 in shape:
            continue
        value = shard.local.value if isinstance(shard.local, _Cast) else shard.local
        pieces.append(_only_piece(offsets[name], shard))
        parts.append(Part(name, pieces[-1].offset, value, _dtype(shard.local)))
    return (packer.pack(parts, size) if parts else None), _coalesce(pieces)


def _only_piece(base: int, shard: Shard) -> Piece:
    """Where rows of the whole tensor lie in the image."""
    item, row = _DTYPES[_dtype(shard.local)], math.prod(shard.global_shape[1:])
    return Piece(base + (shard.offset[0] * row * item if shard.offset else 0), math.prod(np.shape(shard.local)) * item)


def _header(
    names: list[str], shards: Mapping[str, Shard], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    begin = 0
    relative: dict[str, int] = {}
    for name in names:
        length = _bytes_of(shards[name])
        shape = list(shards[name].global_shape)
        entries[name] = {"dtype": _dtype(shards[name].local), "shape": shape, "data_offsets": [begin, begin + length]}
        relative[name] = begin
        begin += length
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + at for name, at in relative.items()}


def _copy(data: Bytes, base: int, shard: Shard) -> list[Piece]:
    """Copies a shard's rows to where they belong in the whole tensor."""
    local = _as_bytes(shard.local)
    item = _DTYPES[_dtype(shard.local)]
    shape, total = tuple(np.shape(shard.local)), shard.global_shape
    if 0 in shape:
        return []
    # The trailing dimensions that are whole make one contiguous run of bytes.
    split = len(total)
    while split > 0 and shape[split - 1] == total[split - 1]:
        split -= 1
    split = max(split - 1, 0)
    run = math.prod(shape[split:]) * item
    pieces = []
    for n, index in enumerate(np.ndindex(shape[:split])):
        at = 0
        for d in range(len(total)):
            first = shard.offset[d] + (index[d] if d < split else 0)
            at = at * total[d] + first
        pieces.append(Piece(base + at * item, run))
        data[base + at * item : base + at * item + run] = local[n * run : (n + 1) * run]
    return pieces


def _coalesce(pieces: list[Piece]) -> list[Piece]:
    merged: list[Piece] = []
    for piece in sorted(pieces, key=lambda p: p.offset):
        if merged and merged[-1].offset + merged[-1].length == piece.offset:
            merged[-1] = Piece(merged[-1].offset, merged[-1].length + piece.length)
        else:
            merged.append(piece)
    return merged


@dataclass(frozen=True)
class _Cast:
    """A float32 or float16 tensor on its way to bfloat16."""

    value: Any
    shape: tuple[int, ...]
    dtype: str = "bfloat16"


def _casting(shard: Shard, dtype: str | None) -> Shard:
    if dtype not in (None, "bfloat16"):
        raise ValueError(f"dtype is {dtype!r}; give 'bfloat16', or cast before publishing")
    if dtype is None or _dtype(shard.local) not in ("F32", "F16"):
        return shard
    return replace(shard, local=_Cast(shard.local, tuple(np.shape(shard.local))))


def _as_shard(value: Any, everyone: tuple[int, int]) -> Shard:
    if isinstance(value, Shard):
        return value
    if hasattr(value, "placements") and hasattr(value, "to_local"):  # torch.distributed.tensor.DTensor
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        if any(placement.is_partial() for placement in value.placements):
            raise Refused(
                f"a DTensor of shape {tuple(value.shape)} is Partial: each rank holds a term of a sum, and no rank its values; "
                "redistribute it to Replicate or Shard before publishing",
                "TENSOR_PARTIAL",
                "INVALID_ARGUMENT",
            )
        local = value.to_local()
        _, offset = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
        return Shard(local, tuple(value.shape), tuple(offset), _replica(value))
    shape = tuple(np.shape(value))
    return Shard(value, shape, (0,) * len(shape), everyone)


def _refuse_absent(name: str, shard: Shard) -> None:
    """A part may be empty where a tensor has fewer rows than there are ranks; a whole one is not."""
    if getattr(shard.local, "is_meta", False):
        raise Refused(f'the tensor "{name}" is on the meta device and has no values; bring it onto a device before publishing',
                      "TENSOR_ABSENT", "INVALID_ARGUMENT")
    if 0 in shard.global_shape:
        raise Refused(f'the tensor "{name}" has the shape {list(shard.global_shape)} and no values, as a placeholder of DeepSpeed ZeRO-3; publish '
                      "within deepspeed.zero.GatheredParameters(parameters of the adapter), on every rank", "TENSOR_ABSENT", "INVALID_ARGUMENT")


def _part(shard: Shard, tensor: Planned) -> Shard:
    """What this rank holds of a tensor of the image, which is a part of a source tensor."""
    (first, last), (column, step) = tensor.rows, tensor.columns
    shape = shard.global_shape
    if len(shape) == 0 or ((first, last) == (0, shape[0]) and step == 1):
        return shard
    local_rows, local_columns = np.shape(shard.local)[0], shape[1:]
    begin = min(max(first - shard.offset[0], 0), local_rows)
    end = min(max(last - shard.offset[0], begin), local_rows)
    rows_at = max(shard.offset[0] + begin - first, 0)
    if step == 1:
        local = _slice(shard.local, slice(begin, end), slice(None))
        return Shard(local, (last - first, *local_columns), (rows_at, *shard.offset[1:]), shard.replica)
    skipped = -(-max(shard.offset[1] - column, 0) // step)  # of this part's columns, those before this rank's
    local = _slice(shard.local, slice(begin, end), slice(column + skipped * step - shard.offset[1], None, step))
    return Shard(local, (last - first, shape[1] // step), (rows_at, skipped), shard.replica)


def _slice(value: Any, rows: slice, columns: slice) -> Any:
    if not isinstance(value, StoredTensor):
        return value[rows, columns] if columns != slice(None) else value[rows]
    items = np.frombuffer(value.data, dtype=np.uint8).reshape(*value.shape, _DTYPES[value.dtype])
    part = items[rows, columns] if columns != slice(None) else items[rows]
    return StoredTensor(value.dtype, part.shape[:-1], part.tobytes())


def _replica(value: Any) -> tuple[int, int]:
    """This rank's place among those that hold the same part of a DTensor."""
    replica, replicas = 0, 1
    for dimension, (placement, at) in enumerate(zip(value.placements, value.device_mesh.get_coordinate(), strict=True)):
        if placement.is_replicate():
            size = value.device_mesh.size(dimension)
            replica, replicas = replica * size + at, replicas * size
    return replica, replicas


def _bytes_of(shard: Shard) -> int:
    return math.prod(shard.global_shape) * _DTYPES[_dtype(shard.local)]


def _dtype(value: Any) -> str:
    if isinstance(value, StoredTensor) and value.dtype in _DTYPES:
        return value.dtype
    dtype: Any = getattr(value, "dtype", type(value))
    return _dtype_of(dtype, isinstance(value, np.ndarray))


@functools.cache  # asked several times for each of 20,000 tensors
def _dtype_of(dtype: Any, of_numpy: bool) -> str:
    name = str(dtype).removeprefix("torch.")
    table = _NUMPY if of_numpy else _TORCH
    if name not in table:
        raise Refused(
            f"a tensor has dtype {name}; adapters are float32, float16 or bfloat16: cast it before publishing",
            "TENSOR_DTYPE",
            "INVALID_ARGUMENT",
        )
    return table[name]


def _as_bytes(value: Any) -> Bytes:
    """The value's bytes in row-major order, copied only where they are elsewhere (a GPU, another layout)."""
    if isinstance(value, StoredTensor):
        return np.frombuffer(value.data, dtype=np.uint8)
    if isinstance(value, _Cast):
        return _as_bfloat16(value.value)
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    import torch

    flat = value.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    array: Bytes = flat.numpy()
    return array


def _as_bfloat16(value: Any) -> Bytes:
    """To the nearest, ties to even; a NaN stays one."""
    if hasattr(value, "bfloat16"):  # torch
        return _as_bytes(value.detach().bfloat16())
    kind = np.float32 if _dtype(value) == "F32" else np.float16
    single = np.frombuffer(_as_bytes(value), dtype=kind).astype(np.float32)
    bits = single.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(single), np.uint16(0x7FC0), rounded).view(np.uint8)
