"""A checkpoint engine for verl that delivers the actor's LoRA adapter through Lorry, in place of every weight over NCCL.

    actor_rollout_ref.rollout.checkpoint_engine:
      backend: delta_sharded                # see below
      custom_backend_module: lorry.verl     # imported by each of verl's workers before it asks for the backend
      engine_kwargs: {delta_sharded: {adapter: math-policy, rollouts_at_doors: true, store: "store:7000", orchestrator: "orchestrator:7001"}}

Engines get the version from their proxies. Rollouts ask the doors for ``math-policy``, from an agent loop of yours
(``rollout.agent.agent_loop_config_path``), as verl's own call its servers by Ray. Until a run's first version is served the name is answered by the
run before, so ask with ``X-Lorry-Min-Version: r{run}.{step}``: the run is the metric ``lorry/run``, and ``current_run`` of the adapter in
``lorry.Admin().adapters()``; the step the oldest that may answer. Of the trainer's modes (``trainer.v1.trainer_mode``) ``separate_async`` alone asks a backend, and with
``actor_rollout_ref.hybrid_engine: false`` for all its replicas: ``sync``, the default, and ``colocate_async`` set it to "naive" and publish nothing
(trainer/ppo/v1/trainer_base.py). A vLLM of verl's must have what ``delta_sharded`` asks of it (require_vllm_delta_support). Follows verl 0.9.1: its actor workers hand the training engine itself to the backend of one name, ``delta_sharded``
(workers/engine_workers.py), and to any other a stream of the base model's or of merged weights. Importing this module takes that name,
and ``lorry``, for streams that carry adapters. Replicas are paused while weights are sent (CheckpointEngineManager.update_weights), so
that no engine could show there that it applies a version: it is stored then, and served once they go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from lorry.collectives import ALONE
from lorry.errors import Superseded
from lorry.handle import PublishHandle
from lorry.run import Run, open_run

STORED_TIMEOUT_S = 300.0
# Of the version before, which had a whole step to be served in: to learn how that went takes one call.
_BEFORE_S = 1.0


@CheckpointEngineRegistry.register("delta_sharded")
@CheckpointEngineRegistry.register("lorry")
class LorryCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """One in each actor and rollout worker; the actor's first rank publishes.

    Args:
        adapter: the adapter's name.
        bucket_size: verl's; nothing is sent in buckets.
        is_master: verl's: the actor's first rank.
        config: adapter_config.json's fields, where the backend is given a stream of tensors.
        timeout_s: how long a version may take until it is stored.
        layered_summon: verl's ``rollout.layered_summon``, which it does not tell its backends: gather a layer at a time, where the whole model
            does not fit the actor's GPU.
        rollouts_at_doors: that an agent loop of yours asks doors. Replicas refuse their first update where this does not say so: they get no
            tensor, so that whoever calls them directly would be answered by the base model for ever.
        run: as :func:`lorry.open_run`: ``store``, ``orchestrator``, ``token_file``, ``resume_from`` and so on.
    """

    def __init__(self, bucket_size: int, adapter: str, is_master: bool = False, config: Mapping[str, Any] | None = None,
                 timeout_s: float = STORED_TIMEOUT_S, layered_summon: bool = False, rollouts_at_doors: bool = False,
                 **run: Any) -> None:
        self._layered_summon, self._rollouts_at_doors = layered_summon, rollouts_at_doors
        self._adapter, self._config, self._timeout_s, self._arguments = adapter, config, timeout_s, run
        self._is_master = is_master
        self._run: Run | None = None
        self._before: PublishHandle | None = None

    def prepare(self) -> dict[str, Any]:
        """Nothing: no two workers talk to each other."""
        return {}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Nothing."""
        return {}, {}

    def init_process_group(self, **kwargs: Any) -> None:
        """Nothing."""

    def finalize(self) -> None:
        """Nothing; the run stays open for the next version."""

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> dict[str, float]:
        """Publishes the adapter as version ``global_steps`` and waits until it is stored. Every actor rank calls it, as gathering the
        tensors takes all of them.

        Args:
            weights: verl's training engine, or the adapter's (name, tensor) pairs.

        Raises:
            ValueError: there is no adapter, or no step; LorryError: it cannot be stored, or the version before could not be served, which
                is told once and before anything is published.
        """
        if global_steps is None:
            raise ValueError("a version is numbered by its step; call update_weights(global_steps=...)")
        config = self._config
        if hasattr(weights, "get_per_tensor_param"):
            weights, config = weights.get_per_tensor_param(layered_summon=self._layered_summon, base_sync_done=True)  # which means: the adapter alone
        tensors = dict(weights)  # on every rank, as each tensor may be gathered on its way
        if not any("lora_" in name for name in tensors):
            raise ValueError("verl gave no LoRA tensor; set model.lora_rank and model.lora.merge=False, and backend: delta_sharded, to which "
                             "verl gives the adapter")
        if not self._is_master:
            return {}
        began = time.monotonic()
        run = await asyncio.to_thread(self._publish, tensors, config, global_steps)
        return {"lorry/run": float(run), "lorry/version": float(global_steps), "lorry/stored_s": time.monotonic() - began}

    def _publish(self, tensors: Mapping[str, Any], config: Mapping[str, Any] | None, version: int) -> int:
        """Returns the run's number."""
        if self._run is None:
            self._run = open_run(self._adapter, group=ALONE, **self._arguments)
        before, self._before = self._before, None  # what became of it is told once; the step may then be sent again
        if before is not None:
            with contextlib.suppress(TimeoutError, Superseded):  # this one comes in its place
                before.wait("serving", _BEFORE_S)
        handle = self._run.publish(tensors, version=version, config=config)
        handle.wait("stored", self._timeout_s)
        self._before = handle
        return self._run.number

    def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Any]]:
        """No tensor: the engine's proxy has loaded the version when the actor says that it is served.

        Raises:
            ValueError: no setting says that rollouts ask doors.
        """
        if not self._rollouts_at_doors:
            raise ValueError("verl's own agent loops call this server by Ray, where it would answer with the base model for ever: lorry.verl has the "
                             "adapter answered at doors alone. Ask those from an agent loop of yours (rollout.agent.agent_loop_config_path), and say so: "
                             f"checkpoint_engine.engine_kwargs.delta_sharded.rollouts_at_doors=true, for {self._adapter}")
        return _nothing()


async def _nothing() -> AsyncIterator[tuple[str, Any]]:
    return
    yield
