"""usage: end_to_end.py BIN_DIR: an adapter of 200 MB from "stored" to two proxies that have it, by the programs themselves.

A real adapter-store, sync-orchestrator and two engine-proxies, in front of one fake SGLang and one fake vLLM. Prints
`ready BYTES`; then, for each SIGUSR1, publishes a version and prints the seconds from the store's stamp of it until the
orchestrator has heard from both proxies that every byte is there, verified, and lies in its directory (FETCHED). Loads are
held until then, so that nothing but the transfer runs. SIGTERM, or its parent's end, ends it. Started by transfer_bench.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import lorry
import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))
from lorry.common.v1 import adapter_pb2
from lorry.sync.v1 import fleet_pb2, sync_pb2
from testing import engines
from testing.world import ADAPTER, World

# 448 tensors of a rank-32 adapter in f16, 200,015,872 bytes: as many as the bare transfer's image, to a part in ten thousand.
LAYERS, RANK, WIDTH = 32, 32, 6976
# A model that such an adapter is for, as far as the fakes read it.
MODEL = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_attention_heads": 64, "head_dim": WIDTH // 64, "num_key_value_heads": 64}
PARTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
# A round takes two seconds; one that takes a minute has gone wrong.
DEADLINE_S = 60.0
HERE = (fleet_pb2.RESIDENCY_STATE_FETCHED, fleet_pb2.RESIDENCY_STATE_LOADING, fleet_pb2.RESIDENCY_STATE_LOADED)


def adapter() -> tuple[dict[str, np.ndarray], dict]:
    """(state dict, config)"""
    noise = np.random.default_rng(7).standard_normal(RANK * WIDTH, dtype=np.float32).astype(np.float16) * np.float16(0.01)
    state = {}
    for layer in range(LAYERS):
        for part in PARTS:
            name = f"base_model.model.model.layers.{layer}.{part}.lora_"
            state[name + "A.weight"] = noise.reshape(RANK, WIDTH)
            state[name + "B.weight"] = noise.reshape(WIDTH, RANK)
    modules = [part.split(".")[1] for part in PARTS]
    return state, {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": modules}


@dataclasses.dataclass(frozen=True)
class Round:
    """Seconds of one version: `publish` returned, the store had it, both proxies had it; from `publish` being called."""

    laid_out: float
    stored: float
    fetched: float
    stored_to_fetched: float  # from the store's own stamp


class Rounds:
    """Version after version of one adapter that differs in one number."""

    def __init__(self, world: World, name: str = ADAPTER) -> None:
        self._world = world
        self._name = name
        self._run = world.open_run(name)
        self._connection = lorry.Connection(**world.fleet.addresses())
        self._state, self._config = adapter()
        self.image_bytes = sum(t.nbytes for t in self._state.values())
        self._number = 0

    def next(self) -> Round:
        first = next(iter(self._state))
        self._state[first] = self._state[first].copy()
        self._state[first][0, 0] = self._number + 1
        return self.publish(self._state, self._config)

    def publish(self, state: dict, config: dict) -> Round:
        self._number += 1
        self._hold_loads(True)
        try:
            began = time.monotonic()
            handle = self._run.publish(state, config=config, version=self._number, progress=False)
            laid_out = time.monotonic() - began
            handle.wait("stored", DEADLINE_S)
            stored = time.monotonic() - began
            both_at = self._wait_fetched()
            fetched = time.monotonic() - began
        finally:
            self._hold_loads(False)
        handle.wait("serving", DEADLINE_S)
        stored_at_ms = self._world.admin.versions(self._name)[0].stored_at_ms
        return Round(laid_out, stored, fetched, both_at - stored_at_ms / 1e3)

    def _wait_fetched(self) -> float:
        """When the orchestrator said so, in seconds since 1970."""
        version = adapter_pb2.VersionRef(adapter=self._name, run=self._run.number, number=self._number)
        told = self._connection.sync.WatchSync(sync_pb2.WatchSyncRequest(version=version), timeout=DEADLINE_S,
                                               metadata=self._connection.metadata())
        for news in told:
            if sum(member.state in HERE for member in news.progress) == len(self._world.engines):
                now = time.time()
                told.cancel()
                return now
        raise RuntimeError(f"the sync of version {self._number} ended before both proxies had it")

    def _hold_loads(self, hold: bool) -> None:
        for engine in self._world.engines.values():
            engine.set(hold_loads=hold)


def serve(world: World) -> None:
    asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
    signal.signal(signal.SIGUSR1, lambda *_: asked.put(True))
    signal.signal(signal.SIGTERM, lambda *_: asked.put(False))
    rounds, parent = Rounds(world), os.getppid()
    print(f"ready {rounds.image_bytes}", flush=True)
    while os.getppid() == parent:
        try:
            if not asked.get(timeout=1.0):
                return
        except queue.Empty:
            continue
        print(f"{rounds.next().stored_to_fetched:.6f}", flush=True)


@contextlib.contextmanager
def fleet(
    bin_dir: str,
    folder: pathlib.Path,
    *adapters: str,
    prepare: Callable[[World], None] = lambda world: None,
    model: dict = MODEL,
    rank: int = RANK,
) -> Iterator[World]:
    """The programs before two fake engines of `model`, as wide as the adapter. `prepare` changes them before they start."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(model))
    pair = [engines.fake(kind, folder / "model", log_dir=folder, args=["--max-lora-rank", str(rank)]) for kind in engines.KINDS]
    world = World(bin_dir, folder, *pair)
    prepare(world)
    with world:
        for name in adapters:
            world.admin.set_policy(name, {"stage_deadline_ms": int(DEADLINE_S * 1000)})
        yield world


def main() -> None:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lorry-bench-"))
    try:
        with fleet(sys.argv[1], folder, ADAPTER) as world:
            serve(world)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
