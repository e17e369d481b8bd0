"""Packs an adapter on the GPU that trains it, by ``liblorry_gpu.so`` (clients/gpu): one kernel instead of a copy for each tensor.

The trainer's stream goes on as soon as the kernel has read the weights; the image is copied to the host piece by piece, while the
pieces before are sent. Where there is no library, or the adapter is not wholly on one GPU, :mod:`lorry.image` copies tensor by tensor.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lorry.errors import Cancelled, LorryError, Refused
from lorry.programs import find_library

LEAF_BYTES = 1 << 20  # an image has one checksum for each so many bytes
LIBRARY = "liblorry_gpu.so"

_FORMATS = {"F32": 0, "F16": 1, "BF16": 2}
_TORCH = {"torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16"}
# clients/gpu/lorry_gpu.h
_SOURCE = np.dtype([("address", "u8"), ("rows", "u8"), ("columns", "u8"), ("row_stride", "i8"), ("column_stride", "i8"), ("begin", "u8"),
                    ("from", "u1"), ("to", "u1")], align=True)
_STATS = np.dtype([("sum_squares", "f8"), ("finite", "u1"), ("zero", "u1")], align=True)
_LOOK_MS = 200  # the longest that the library waits for a GPU in one call
# The parameters of lorry_gpu_open and so on: p is a pointer, L a uint64_t, i an int.
_SIGNATURES = {"open": "ip", "close": "p", "pack": "ppLLpp", "wait": "pLp", "find": "pppp", "land": "pppLp", "free": "p"}

_log = logging.getLogger("lorry")


@dataclass(frozen=True)
class Part:
    """A tensor whose elements lie one after the other in the image, from the byte ``begin``, as ``dtype``."""

    name: str
    begin: int
    value: Any
    dtype: str


@dataclass
class _Gpu:
    """A GPU that the library was opened for."""

    opened: ctypes.c_void_p
    jobs: int = 0  # that are not freed
    draining: threading.Lock = field(default_factory=threading.Lock)  # held while an image comes down through its two buffers


class Packer:
    """The library, and the GPUs that it was opened for. Thread-safe. Lives as long as the process: the next image uses its memory again,
    until something fails.

    Args:
        path: of the library.

    Raises:
        OSError: it cannot be loaded.
    """

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        self._calls = {name: _function(library, name, arguments) for name, arguments in _SIGNATURES.items()}
        library.lorry_gpu_kind.restype = ctypes.c_char_p
        self._kind: str = library.lorry_gpu_kind().decode()
        self._gpus: dict[int, _Gpu] = {}  # by ordinal
        self._packing = threading.Lock()  # and held for the two beside it
        self._works = True

    def call(self, name: str, *arguments: Any) -> None:
        """Raises LorryError where the library says that something went wrong."""
        said = self._calls[name](*arguments)
        if said is not None:
            raise LorryError(f"on the GPU: {said.decode()}", "", "INTERNAL")

    def pack(self, parts: Sequence[Part], image_bytes: int) -> Packing | None:
        """Queues the packing behind what the trainer's current stream holds; None where the tensors have to be copied one by one.

        Raises:
            RuntimeError: that stream is being captured into a graph.
        """
        device = self._device_of(parts) if self._works else None
        if device is None:
            return None
        ordinal = device.index or 0
        # Until they are packed. torch knows nothing of the kernel that reads them: were they freed, it would give their memory to the
        # next tensors of the stream that they were made in, which need not be the one that waits for the kernel. Detached, as a
        # parameter's own memory is let go of where a trainer puts other data in it.
        kept = [part.value.detach() for part in parts]
        rows = [_row(part, value) for part, value in zip(parts, kept, strict=True)]
        if any(row is None for row in rows):
            return None
        sources = np.array(rows, dtype=_SOURCE)
        stream, job = None, ctypes.c_void_p()
        try:
            if self._kind == "cuda":
                import torch

                if torch.cuda.is_current_stream_capturing():
                    raise RuntimeError("the current CUDA stream is being captured into a graph: publish before or after the capture")
                stream = torch.cuda.current_stream(device).cuda_stream
            with self._packing:
                if ordinal not in self._gpus:
                    opened = ctypes.c_void_p()
                    self.call("open", ordinal, ctypes.byref(opened))
                    self._gpus[ordinal] = _Gpu(opened)
                gpu = self._gpus[ordinal]
                self.call("pack", gpu.opened, sources.ctypes.data, len(sources), image_bytes, stream, ctypes.byref(job))
                gpu.jobs += 1
        except LorryError as error:
            self.give_up(str(error))
            return None
        return Packing(self, gpu, job, kept, [part.name for part in parts], image_bytes)

    def free(self, gpu: _Gpu, job: ctypes.c_void_p) -> None:
        """Gives the memory of a job back, for the next one."""
        self.call("free", job)
        with self._packing:
            gpu.jobs -= 1
            self._close_if_left()

    def give_up(self, why: str) -> None:
        """From here on tensors are copied one by one: what failed once would fail each time."""
        _log.warning("adapters are copied from the GPU tensor by tensor from here on, which is slower: %s", why)
        with self._packing:
            self._works = False
            self._close_if_left()

    def _close_if_left(self) -> None:
        """Gives all memory back once nothing is packed any more: a trainer on a full GPU needs it."""
        if self._works:
            return
        for ordinal, gpu in list(self._gpus.items()):
            if gpu.jobs == 0:
                self.call("close", gpu.opened)
                del self._gpus[ordinal]

    def _device_of(self, parts: Sequence[Part]) -> Any:
        """The one GPU that holds all of it."""
        devices = {getattr(part.value, "device", None) if hasattr(part.value, "data_ptr") else None for part in parts}
        device = devices.pop() if len(devices) == 1 else None
        return device if getattr(device, "type", None) == self._kind else None


class Packing:
    """An image on its way from the GPU. ``start`` once; any thread may wait for what it brings."""

    def __init__(self, packer: Packer, gpu: _Gpu, job: ctypes.c_void_p, sources: list[Any], names: list[str], image_bytes: int) -> None:
        self._packer, self._gpu, self._job = packer, gpu, job
        self._sources, self._names = sources, names
        self._known = np.zeros(-(-image_bytes // LEAF_BYTES), dtype=np.uint8)
        self._hashes = np.zeros((len(self._known), 16), dtype=np.uint8)
        self._state = threading.Condition()
        self._data: npt.NDArray[np.uint8] | None = None
        self._writes = self._found = False
        self._failed: LorryError | None = None
        self._landed = 0

    def start(self, data: npt.NDArray[np.uint8], spans: Sequence[tuple[int, int]]) -> None:
        """Starts a thread that copies the bytes of ``spans`` (begin, end), which are sorted, from the GPU to ``data``."""
        self._begins = np.array([begin for begin, _ in spans], dtype=np.uint64)
        self._lengths = np.array([end - begin for begin, end in spans], dtype=np.uint64)
        self._before = np.cumsum(self._lengths) - self._lengths  # bytes of the spans before each
        self._total = int(self._lengths.sum())
        self._data = data
        self._thread = threading.Thread(target=self._run, name="lorry-gpu", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Waits until the GPU has looked at every value.

        Raises:
            Refused: some are NaN or infinite.
            LorryError: the GPU failed.
        """
        self._wait(lambda: self._found)

    def wait(self, end: int) -> int:
        """Waits until the spans are in ``data`` up to the byte ``end``; returns how far they are by now. Raises as ``check``."""
        self._wait(lambda: self._end() >= end)
        return self._end()

    def leaf(self, index: int) -> bytes | None:
        """The checksum of a leaf, where the GPU computed it. Raises as ``check``."""
        self.check()
        return self._hashes[index].tobytes() if self._known[index] else None

    def cancel(self) -> None:
        """Whoever waits gets Cancelled raised at once; the thread ends after the piece that it is copying. Nothing once all is there."""
        if not self._found or self._landed < self._total:
            self._tell(failed=Cancelled("the upload was cancelled", "", "CANCELLED"))

    def close(self) -> None:
        """Cancels. Nothing is written to ``data`` any more once this returns; the tensors are kept until the GPU has read them."""
        self.cancel()
        with self._state:  # at most until a piece has been copied
            self._state.wait_for(lambda: not self._writes)
            self._data = None

    def _wait(self, reached: Any) -> None:
        # Without a timeout: it takes as long as the trainer's own step. ``cancel`` ends it, and a GPU that fails.
        with self._state:
            self._state.wait_for(lambda: self._failed is not None or reached())
        if self._failed is not None:
            raise self._failed

    def _end(self) -> int:
        """All bytes of the spans before this byte of the image are in ``data``."""
        at = int(np.searchsorted(self._before, self._landed, side="right")) - 1
        within = self._landed - int(self._before[at])
        if within < int(self._lengths[at]):
            return int(self._begins[at]) + within
        return len(self._known) * LEAF_BYTES  # all spans are: the image's end, or some bytes behind it

    def _run(self) -> None:
        try:
            try:
                self._await()
                self._sources.clear()
                with self._gpu.draining:
                    self._drain()
            finally:
                self._packer.free(self._gpu, self._job)
        except LorryError as error:
            if error.code == "INTERNAL":  # the GPU has failed, and not the values: it is not used again
                self._packer.give_up(str(error))
            # After give_up: whoever waits may publish again at once, then without the GPU. The traceback would keep the image.
            self._tell(failed=error.with_traceback(None))

    def _await(self) -> None:
        """Returns once the GPU has read the tensors, which it does behind the trainer's step, also if nobody wants them any more."""
        packed = ctypes.c_uint8()
        while not packed.value:
            self._packer.call("wait", self._job, _LOOK_MS, ctypes.byref(packed))

    def _drain(self) -> None:
        with self._state:
            self._writes = self._failed is None
        if not self._writes:
            return
        try:
            assert self._data is not None
            self._find()
            self._land(self._data)
        finally:
            with self._state:
                self._writes, self._data = False, None
                self._state.notify_all()

    def _find(self) -> None:
        stats = np.zeros(len(self._names), dtype=_STATS)
        self._packer.call("find", self._job, stats.ctypes.data, self._known.ctypes.data, self._hashes.ctypes.data)
        bad = np.flatnonzero(stats["finite"] == 0)
        if len(bad) > 0:
            raise Refused(f'"{self._names[bad[0]]}" holds NaN or infinity; the training step diverged, publish an earlier one',
                          "TENSOR_NOT_FINITE", "INVALID_ARGUMENT")
        self._tell(found=True)

    def _land(self, data: npt.NDArray[np.uint8]) -> None:
        spans = np.stack([self._begins, self._lengths], axis=1)
        landed = ctypes.c_uint64()
        while landed.value < self._total and self._failed is None:
            self._packer.call("land", self._job, data.ctypes.data, spans.ctypes.data, len(spans), ctypes.byref(landed))
            self._tell(landed=landed.value)

    def _tell(self, found: bool = True, landed: int = 0, failed: LorryError | None = None) -> None:
        """Wakes whoever waits. The defaults suit every call: bytes land only after ``_find``, and a failure overrides all."""
        with self._state:
            self._found, self._landed, self._failed = found, landed, self._failed or failed
            self._state.notify_all()


def find_packer() -> Packer | None:
    """A packer with the library that ``LORRY_GPU`` names or that came with ``lorry``; None without one, or with LORRY_GPU=off."""
    named = os.environ.get("LORRY_GPU", "")
    found = None if named == "off" else named or find_library(LIBRARY)
    return _load(str(found)) if found is not None else None


@functools.cache
def _load(path: str) -> Packer | None:
    try:
        return Packer(path)
    except OSError as error:
        _log.warning("adapters are copied from the GPU tensor by tensor: %s", error)
        return None


def _function(library: ctypes.CDLL, name: str, arguments: str) -> Any:
    function = getattr(library, f"lorry_gpu_{name}")
    function.argtypes = [{"p": ctypes.c_void_p, "L": ctypes.c_uint64, "i": ctypes.c_int}[kind] for kind in arguments]
    function.restype = None if name in ("free", "close") else ctypes.c_char_p
    return function


def _row(part: Part, value: Any) -> tuple[int, ...] | None:
    """The part as an entry of ``_SOURCE``, which describes a matrix; None where it cannot be described so."""
    dtype = _TORCH.get(str(value.dtype))
    if dtype is None or part.dtype not in _FORMATS:
        return None
    if value.dim() == 2:
        shape, strides = tuple(value.shape), tuple(value.stride())
    elif value.dim() == 1 or value.is_contiguous():
        shape, strides = (1, math.prod(value.shape)), (0, value.stride(0) if value.dim() == 1 else 1)
    else:
        return None
    return (value.data_ptr(), *shape, *strides, part.begin, _FORMATS[dtype], _FORMATS[part.dtype])
