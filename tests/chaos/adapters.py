"""Adapter directories, each with bytes of its own."""

from __future__ import annotations

import pathlib
import shutil
import threading

import numpy as np
from engine_core import WEIGHTS
from safetensors.numpy import load_file, save_file


class Adapters:
    """Any thread. `like`: a good adapter of the engines' base model."""

    def __init__(self, folder: pathlib.Path, like: pathlib.Path, seed: int) -> None:
        self._folder, self._like, self._seed = folder, like, seed
        self._tensors = load_file(like / WEIGHTS)
        self._count = 0
        self._lock = threading.Lock()

    def next(self) -> pathlib.Path:
        with self._lock:
            self._count += 1
            count = self._count
        out = self._folder / f"a{count}"
        shutil.copytree(self._like, out)
        draw = np.random.default_rng([self._seed, count])
        noisy = {
            k: v + draw.standard_normal(v.shape, dtype=v.dtype) * np.float32(0.01) if "lora_B" in k else v
            for k, v in self._tensors.items()
        }
        save_file(noisy, out / WEIGHTS, metadata={"format": "pt"})
        return out
