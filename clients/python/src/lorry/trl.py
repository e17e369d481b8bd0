"""TRL's GRPOTrainer in server mode, syncing its adapter through Lorry in place of merged weights.

    from lorry.trl import GRPOTrainer

    args = GRPOConfig("out", use_vllm=True, vllm_mode="server", vllm_server_base_url="http://a-door:8000")
    with lorry.open_run("math-policy") as run:
        GRPOTrainer(MODEL, reward, args, dataset, peft_config=LoraConfig(r=32), vllm_sync_strategy="lora_adapter", lorry_run=run).train()

The server is a door in front of a vLLM with ``--enable-lora``; it needs no ``--weight-transfer-config``, and the trainer needs neither vLLM
nor CUDA. Follows TRL 1.16: GRPOTrainer makes a VLLMGeneration, and has it sync before it generates in a step that is new.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from accelerate.utils import gather_object
from peft import PeftModel
from trl import GRPOTrainer as _GRPOTrainer
from trl.generation import vllm_client
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer

from lorry.errors import LorryError, Refused
from lorry.handle import PublishHandle
from lorry.run import Run
from lorry.state import active_adapter

STRATEGIES = ("weights", "lora_adapter")


class GRPOTrainer(_GRPOTrainer):  # type: ignore[misc]
    """TRL's, with two arguments more. Every rank makes one.

    Args:
        vllm_sync_strategy: ``"weights"``: as TRL does. ``"lora_adapter"``: before each generation the active adapter is published, and once
            it is served the door answers with it. Versions are numbered as the steps are; a second ``train()`` counts on, and so does a second trainer of the run.
        lorry_run: what :func:`lorry.open_run` gave, on every rank, once torch.distributed is initialised: ``GRPOConfig`` does so.

    Raises:
        ValueError: the adapter is one that engines cannot serve, or the mode is not ``"server"``; says what to use instead.
    """

    def __init__(self, *args: Any, vllm_sync_strategy: str = "weights", lorry_run: Run | None = None, **kwargs: Any) -> None:
        if vllm_sync_strategy not in STRATEGIES:
            raise ValueError(f'vllm_sync_strategy is {vllm_sync_strategy!r}; give "weights" or "lora_adapter"')
        if vllm_sync_strategy == "weights":
            super().__init__(*args, **kwargs)
            return
        if lorry_run is None:
            raise ValueError('vllm_sync_strategy="lora_adapter" publishes in a run; pass lorry_run=lorry.open_run("a-name")')
        made = functools.partial(AdapterGeneration, run=lorry_run, step=lambda: self.state.global_step)
        with _standing_in(grpo_trainer, "VLLMGeneration", made):
            super().__init__(*args, **kwargs)
        if not self.use_vllm:
            raise ValueError('vllm_sync_strategy="lora_adapter" needs use_vllm=True and vllm_mode="server"')


class AdapterGeneration(VLLMGeneration):  # type: ignore[misc]
    """Generates at a door. Where TRL opens a group to send weights there is nothing, and where it sends them, a publish."""

    def __init__(self, *args: Any, run: Run, step: Callable[[], int], **kwargs: Any) -> None:
        self._run, self._step, self._version = run, step, -1
        self._handle: PublishHandle | None = None
        super().__init__(*args, **kwargs)

    def _init_vllm(self) -> None:
        if self.mode != "server":
            raise ValueError(f'vllm_sync_strategy="lora_adapter" needs vllm_mode="server", not "{self.mode}"; an engine in the trainer\'s '
                             'own process is synced by "weights"')
        check_adapter(self.model)
        if self._dist.fsdp_version == 1:
            raise ValueError('vllm_sync_strategy="lora_adapter" does not read the flat parameters of FSDP 1; set fsdp_version: 2, or use "weights"')
        opened, ranks = self._run.world_size, self.accelerator.num_processes
        if opened != ranks:
            raise ValueError(f"the run was opened by {opened} of the {ranks} ranks that train; call lorry.open_run on every rank, without group= and "
                             "after GRPOConfig, which initialises torch.distributed")
        self._on_all_ranks("reach the door", self._connect)
        stored = self._run.state_dict()  # by a trainer before this one
        if stored["run"] == self._run.number and stored["version"] is not None:
            self._version = stored["version"]

    def _connect(self) -> None:
        if not self.accelerator.is_main_process:
            return
        url = self.server_base_url or f"http://{self.server_host}:{self.server_port}"
        # The client needs vLLM for its weight transfer alone.
        with _standing_in(vllm_client, "is_vllm_available", lambda *_, **__: True):
            self.vllm_client = vllm_client.VLLMClient(base_url=url, connection_timeout=self.server_timeout)
        self.vllm_client.model = self._run.adapter

    def sync_weights(self) -> None:
        """Publishes on every rank, each what it holds, and waits until the door serves it: ``vllm_server_timeout`` seconds at most.

        No rank is left waiting for another that failed: whether all is well is asked of all of them, first before any waits for the
        slices of others.

        Raises:
            LorryError, TimeoutError: of this rank; LorryError: of another.
        """
        self._version, self._handle = max(self._step(), self._version + 1), None
        self._on_all_ranks(f"publish v{self._version}", self._publish)
        self._on_all_ranks(f"sync v{self._version}", self._wait)
        # The door never answers with an older one, nor with one of an earlier run, and needs no flush: each version has prefixes of its own.
        if self.accelerator.is_main_process:
            self.vllm_client.session.headers["X-Lorry-Min-Version"] = f"r{self._run.number}.{self._version}"

    def _publish(self) -> None:
        adapter = [p for name, p in self.model.named_parameters() if self.model.prefix in name]
        with self._dist.gather_params(adapter):  # of ZeRO-3; slices of FSDP 2 are published as they are
            self._handle = self._run.publish(self.model, version=self._version)

    def _wait(self) -> None:
        assert self._handle is not None
        self._handle.wait("serving" if self.accelerator.is_main_process else "stored", self.server_timeout)

    def _on_all_ranks(self, what: str, part: Callable[[], None]) -> None:
        """This rank's part of something; where one rank fails, all raise.

        Raises:
            Exception: of this rank; LorryError: of another.
        """
        failed: Exception | None = None
        try:
            part()
        except Exception as error:
            failed = error
            self._cancel()  # by which the store tells the ranks that wait for this one's slices
        told = [text for text in gather_object([failed and f"{type(failed).__name__}: {failed}"]) if text]
        if failed is not None:
            raise failed
        if told:
            self._cancel()
            raise LorryError(f"another rank could not {what}: {told[0]}", code="ABORTED")

    def _cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


def check_adapter(model: Any) -> None:
    """Whether engines can serve the model's active adapter as LoRA, before anything is trained.

    Raises:
        ValueError: they cannot; one sentence about why, and what to use instead.
    """
    if not isinstance(model, PeftModel):
        raise ValueError('vllm_sync_strategy="lora_adapter" needs a PEFT model; pass peft_config=LoraConfig(...) or a PeftModel')
    try:
        config = model.peft_config[active_adapter(model)]
    except Refused as error:
        raise ValueError(str(error)) from None
    kind = getattr(config.peft_type, "value", config.peft_type)
    trained = {
        f"peft_type={kind}": kind != "LORA",
        "use_dora=True": getattr(config, "use_dora", False),
        f"modules_to_save={getattr(config, 'modules_to_save', None)}": bool(getattr(config, "modules_to_save", None)),
        f"bias={getattr(config, 'bias', 'none')!r}": getattr(config, "bias", "none") != "none",
    }
    for what, is_so in trained.items():
        if is_so:
            raise ValueError(f'the adapter has {what}, which engines do not serve as LoRA; train a plain LoraConfig (use_rslora is fine), or use '
                             'vllm_sync_strategy="weights", which merges it')


@contextlib.contextmanager
def _standing_in(module: Any, name: str, value: object) -> Iterator[None]:
    """For as long as TRL makes an object of a class that it names itself."""
    own = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, own)
