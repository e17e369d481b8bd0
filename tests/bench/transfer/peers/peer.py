"""What every peer's runner is made of: a class Peer, one object of it in each process.

Process 0 sends, processes 1 to `receivers` receive. A runner file has

    ROWS       {row of the table: settings}; one runner may stand for several ways to use one library
    PACKAGES   what it needs from PyPI beside what .venv/dev has, as a closed list (nothing is resolved); () for none
    RECEIVERS  how many receivers it can serve at most
    PRINTS     what a round of it is: "bare" (the bytes have arrived), "hashed" (and each receiver has hashed them), or both
    Peer       the class

and imports its library inside of Peer, because the table reads every runner without any peer's packages.
"""

from __future__ import annotations

import abc
import dataclasses
import mmap
import pathlib
from collections.abc import Callable, Iterable

import numpy as np
import xxhash

# As many tensors as a rank-32 adapter of a model of 32 layers has, to a few.
TENSORS = 450
STAMP_EVERY = 1 << 20


@dataclasses.dataclass(frozen=True)
class Job:
    number: int  # of this process: 0 sends
    receivers: int
    bytes: int
    folder: str  # this turn's own, on disk; removed after it
    memory: str  # the same in memory
    bin_dir: str  # where Lorry's programs are
    settings: dict

    @property
    def sends(self) -> bool:
        return self.number == 0

    def path(self, name: str) -> pathlib.Path:
        return pathlib.Path(self.memory) / name


class Peer(abc.ABC):
    """`exchange(word)` gives each process the words of all, by number, once all have called it; it may be used inside of a round,
    and costs what telling an engine "it is there" over a local socket would."""

    def __init__(self, job: Job, exchange: Callable[[str], list[str]]) -> None:
        self.job = job
        self.exchange = exchange
        self.image = self.make_image()

    def make_image(self) -> np.ndarray:
        """Where the bytes lie: at the sender's before a round, at a receiver's after it. Replaced where a library has its own memory."""
        return arena(self.job.bytes)

    def fill(self, number: int) -> str:
        """The sender's image gets bytes that no round before it had, so that none can pass with old ones; returns their hash."""
        self.image[::STAMP_EVERY] = number % 251
        self.image[-8:] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
        return hashed([self.image])

    @abc.abstractmethod
    def prepare(self) -> None:
        """Everything that happens once: connecting, registering memory."""

    @abc.abstractmethod
    def transfer(self) -> float | None:
        """One round; returns when this process is done with it. Seconds, where the program that was run measures itself."""

    def verify(self) -> str:
        """The hash of what a receiver has."""
        return hashed([self.image])

    def close(self) -> None:
        """Whatever does not end with the process; files in the job's folders do."""


def arena(size: int) -> np.ndarray:
    """Memory that has been touched, in huge pages where the system has them: what every peer does best with."""
    memory = mmap.mmap(-1, size + (2 << 20), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    image = np.frombuffer(memory, np.uint8)
    image = image[-image.ctypes.data % (2 << 20):][:size]
    image[:] = np.resize(np.random.default_rng(7).integers(0, 256, 1 << 20, np.uint8), size)
    return image


def hashed(parts: Iterable[np.ndarray]) -> str:
    """XXH3-128, which Lorry takes of every leaf."""
    state = xxhash.xxh3_128()
    for part in parts:
        state.update(part)
    return state.hexdigest()


def tensors_of(image: np.ndarray) -> dict[str, np.ndarray]:
    """The image as a state dict of 16-bit numbers, in order, without a copy."""
    ends = [len(image) * i // TENSORS & ~1 for i in range(TENSORS)] + [len(image)]
    return {f"model.layers.{i:03}.lora.weight": image[ends[i]:ends[i + 1]].view(np.float16) for i in range(TENSORS)}
