"""ART's adapters through Lorry: steps are published, and an exact step is leased for as long as an evaluation runs.

    from lorry.art import Transport

    admin = lorry.Admin()
    admin.create(adapter, keep_policy(max_steps_off_policy))
    await Transport(lorry.open_run(adapter), admin).attach(service)      # ART's UnslothService, once it has started; its requests go to a door

Follows openpipe-art 0.5.23: a backend asks its ``ModelService`` (art/local/service.py) to load what was trained, and for the name under which exactly
one step answers (``exact_adapter_lease`` in art/local/backend.py). Rollouts ask for ``{adapter}@{step}`` and evaluations,
under their lease, for ``{adapter}@r{run}.{step}``; doors read both. The step that training
begins at, which ART gives its vLLM at its launch, doors learn of when the service is attached. Steps are unloaded when the policy's ``keep`` and the
leases allow, whatever ART prunes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import Mapping
from typing import Any

from lorry.admin import Admin
from lorry.errors import LorryError
from lorry.policies import keeping
from lorry.run import Run

SERVING_TIMEOUT_S = 300.0
# A trainer that dies leaves its leases for so long; renewed three times as often, one call may be lost.
LEASE_S = 60.0
_LOOK_AGAIN_S = 0.2


def keep_policy(max_steps_off_policy: int | None) -> Mapping[str, Any]:
    """The policy for what ART calls ``max_steps_off_policy``: a rollout, which asks by the step that it began with, finds it until it is so many
    steps old, 63 at most, as a pool remembers its last 64 versions; None means as long as that."""
    return keeping(None if max_steps_off_policy is None else max_steps_off_policy + 1)


class Transport:
    """Publishes in ``run`` and leases by ``admin``. One event loop.

    Args:
        timeout_s: how long a step may take until engines serve it, and a leased one until every engine has it.
        lease_s: how long a lease outlives this process.
    """

    def __init__(self, run: Run, admin: Admin, timeout_s: float = SERVING_TIMEOUT_S, lease_s: float = LEASE_S) -> None:
        self._run, self._admin, self._timeout_s, self._lease_s = run, admin, timeout_s, lease_s
        self._leases: dict[str, tuple[int, asyncio.Task[None]]] = {}  # holder → step, and who renews it

    async def attach(self, service: Any) -> None:
        """Takes the place of what ``service`` does at its vLLM: loading a step, holding one, unloading others. Publishes the step that the
        service is at, so that rollouts can begin.

        Args:
            service: an UnslothService whose ``start_openai_server`` is over, as it is after ART's ``model.register(backend)``.

        Raises:
            ValueError: another service, or one of another adapter than the run's; LorryError, TimeoutError: the step is not served.
        """
        # Asked of the class, as ART's proxy of a service in a child process has whatever the service has.
        if not hasattr(type(service), "_load_rollout_lora_for_step") or service.rollout_weight_update_mode != "step_lora":
            raise ValueError(f"lorry.art needs ART's UnslothService in this process, with rollout_weight_update_mode=step_lora, and this is "
                             f"another {type(service).__name__}; LocalBackend(in_process=True) keeps it here")
        if service.model_name != self._run.adapter:
            raise ValueError(f"the run is of {self._run.adapter}, and rollouts of this service ask for {service.model_name}@STEP: give "
                             f"lorry.open_run({service.model_name!r})")

        async def load(checkpoint_path: str, step: int) -> None:
            await self._publish(checkpoint_path, step)
            service._latest_step = step

        service._load_rollout_lora_for_step = load  # all of the service's ways to train and to register a step end there
        service.acquire_exact_adapter = self.acquire_exact_adapter
        service.release_exact_adapter = self.release_exact_adapter
        service.prune_loaded_adapters = _prunes_nothing
        step = service._latest_step
        await load(f"{service.output_dir}/checkpoints/{step:04d}", step)  # get_step_checkpoint_dir of art/utils/output_dirs.py

    async def _publish(self, checkpoint_path: str, step: int) -> None:
        handle = await asyncio.to_thread(self._run.publish, checkpoint_path, version=step)
        await asyncio.to_thread(handle.wait, "serving", self._timeout_s)

    async def acquire_exact_adapter(self, step: int, checkpoint_path: str) -> str:
        """Leases the step until it is released as often as it was acquired; returns once every engine has it. Each user has a lease of its
        own, so that the end of one cannot take that of another which begins at the same moment.

        Returns:
            the name by which doors answer with that step and no other.

        Raises:
            LorryError: NO_SLOT, UNKNOWN_VERSION: the step was not published in this run; TimeoutError.
        """
        holder = f"art-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            await self._wait_until_ready(step, holder)
        except BaseException:
            await self._release(step, holder)
            raise
        self._leases[holder] = step, asyncio.create_task(self._renew(step, holder))
        return self._name(step)

    async def release_exact_adapter(self, step: int) -> None:
        """Ends one user's lease of the step."""
        holder = next(holder for holder, (leased, _) in self._leases.items() if leased == step)
        _, renewing = self._leases.pop(holder)
        renewing.cancel()
        await self._release(step, holder)

    async def _release(self, step: int, holder: str) -> None:
        with contextlib.suppress(LorryError):  # it ends by itself
            await asyncio.to_thread(self._admin.release, self._name(step), holder)

    async def _wait_until_ready(self, step: int, holder: str) -> None:
        give_up_at = time.monotonic() + self._timeout_s
        while not (await asyncio.to_thread(self._lease, step, holder)).ready:
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"{self._name(step)} is not on every engine after {self._timeout_s:.0f} s")
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _renew(self, step: int, holder: str) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            with contextlib.suppress(LorryError):  # the next may pass; without a lease doors refuse the name
                await asyncio.to_thread(self._lease, step, holder)

    def _lease(self, step: int, holder: str) -> Any:
        return self._admin.lease(self._name(step), holder, self._lease_s)

    def _name(self, step: int) -> str:
        return f"{self._run.adapter}@r{self._run.number}.{step}"


async def _prunes_nothing(*, retain_steps: set[int]) -> None:
    del retain_steps
