"""AReaL's inference engines with LoRA through Lorry: disk updates are published, and requests name ``{lora_name}-v{version}`` as before.

    from lorry.areal import keep_policy, rollout_engine

    lorry.Admin().create(lora_name, keep_policy(max_head_offpolicyness + 2))
    run = lorry.open_run(lora_name, group=lorry.ALONE) if rank == 0 else None      # rank 0 updates weights, every rank asks
    if run is not None:
        run.publish(initial_lora, version=0).wait("serving", 300)  # before any rank rolls out
    rollout = rollout_engine(config.rollout, run)
    rollout.initialize(addr=["door-a:40001", "door-b:40001"])

Follows AReaL 1.0.4, where a backend builds requests and RemoteInfEngine sends them: versions are saved, announced and waited for as they
were, and what was the load and the unload at every server is one publish. So is version 0, which rollouts ask for until the first update and
which AReaL gives its servers at their launch (``--lora-paths {lora_name}-v0=...``): doors do not know what an engine was launched with. Lorry unloads what the policy does not keep, when nobody uses it.
This is for SPMD scripts of your own that drive AReaL's engines: its PPOTrainer trains LoRA under the single controller alone. That is not adopted,
as each of its rollout workers updates by itself: point it at doors with AReaL's own calls.
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Mapping
from typing import Any

from areal.api.io_struct import HttpRequest, WeightUpdateRequests
from areal.engine import sglang_remote, vllm_remote
from areal.infra import RemoteInfEngine

from lorry.policies import keeping
from lorry.run import Run

SERVING_TIMEOUT_S = 300.0


def rollout_engine(config: Any, run: Run | None, timeout_s: float = SERVING_TIMEOUT_S) -> Any:
    """AReaL's RemoteSGLangEngine or RemotevLLMEngine, as ``config.backend`` says, over doors in front of such engines.

    Args:
        config: AReaL's InferenceEngineConfig.
        run: the adapter's, opened with ``group=lorry.ALONE``; None on ranks that never update weights.
        timeout_s: how long a version may take until engines serve it.
    """
    vllm = config.backend.partition(":")[0] == "vllm"
    engine = vllm_remote.RemotevLLMEngine(config) if vllm else sglang_remote.RemoteSGLangEngine(config)
    engine._engine = _Engine(config, (VLLMBackend if vllm else SGLangBackend)(run, config.use_lora, timeout_s))
    return engine


def keep_policy(lora_keep_versions: int) -> Mapping[str, Any]:
    """The policy for what AReaL calls ``lora_keep_versions``: so many of the last versions stay loaded, 64 at most, as a pool remembers
    no more; 0 means as many as that."""
    return keeping(lora_keep_versions or None)


@dataclasses.dataclass
class _Stamps:
    """Of one generation: the version that its last request named, and that of each token so far."""

    asked: int = -1
    versions: list[int] = dataclasses.field(default_factory=list)


_stamps: contextvars.ContextVar[_Stamps | None] = contextvars.ContextVar("lorry_areal_stamps", default=None)


class _Engine(RemoteInfEngine):  # type: ignore[misc]
    """AReaL's, whose tokens are of the version that was asked for. Its own are of the version at the moment in which they come, which
    is another where an update meanwhile ends nothing."""

    async def agenerate(self, req: Any) -> Any:
        """AReaL's; without LoRA as it is."""
        if not self.config.use_lora:
            return await super().agenerate(req)
        stamps = _Stamps()
        before = _stamps.set(stamps)
        try:
            response = await super().agenerate(req)
        finally:
            _stamps.reset(before)
        response.output_versions = stamps.versions
        return response


class _ThroughLorry:
    """Before AReaL's backend. Requests name ``{lora_name}-v{version}`` as they did, which doors read."""

    def __init__(self, run: Run | None, use_lora: bool, timeout_s: float) -> None:
        self._run, self._use_lora, self._timeout_s = run, use_lora, timeout_s

    def build_generation_request(self, req: Any, with_lora: bool, version: int) -> Any:
        """AReaL's."""
        stamps = _stamps.get()
        if stamps is not None:
            stamps.asked = version
        return super().build_generation_request(req, with_lora, version)  # type: ignore[misc]

    def parse_generation_response(self, response: Any) -> Any:
        """AReaL's."""
        result = super().parse_generation_response(response)  # type: ignore[misc]
        stamps = _stamps.get()
        if stamps is not None:
            stamps.versions += [stamps.asked] * len(result.output_tokens)
        return result

    def build_disk_weight_update_requests(self, meta: Any) -> Any:
        """Publishes what was saved in ``meta.path`` and waits until it is served; nothing is left to send. Without LoRA: AReaL's.

        Raises:
            ValueError: the update names no version, or another adapter than the run's; LorryError, TimeoutError: it is not served.
        """
        if not meta.use_lora:
            return super().build_disk_weight_update_requests(meta)  # type: ignore[misc]
        if meta.version is None:
            raise ValueError("Version is required for LoRA update.")
        if self._run is None or self._run.adapter != meta.lora_name:
            raise ValueError(f'the update is of {meta.lora_name!r}; give its engine lorry.open_run("{meta.lora_name}", group=lorry.ALONE)')
        self._run.publish(meta.path, version=meta.version).wait("serving", self._timeout_s)
        return WeightUpdateRequests(requests=[])

    def get_pause_request(self) -> Any:
        """With LoRA nothing is paused around an update: what runs ends on its version, which stays loaded, and a paused engine could not
        show that it applies the next. Without: AReaL's."""
        return HttpRequest("/health", {}, "GET") if self._use_lora else super().get_pause_request()  # type: ignore[misc]

    def get_resume_request(self) -> Any:
        """As the pause."""
        return HttpRequest("/health", {}, "GET") if self._use_lora else super().get_resume_request()  # type: ignore[misc]


class SGLangBackend(_ThroughLorry, sglang_remote.SGLangBackend):  # type: ignore[misc]
    """For SGLang."""


class VLLMBackend(_ThroughLorry, vllm_remote.VLLMBackend):  # type: ignore[misc]
    """For vLLM."""
