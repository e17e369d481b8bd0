"""A weight transfer protocol for miles that publishes the adapter through Lorry, in place of streaming it to every engine.

    --update-weight-transfer-mode external --custom-weight-transfer-protocol-path lorry.miles.protocol --lora-rank 32 ...
    LORRY_STORE=store:7000 LORRY_ORCHESTRATOR=orchestrator:7001

Engines are external, and rollouts ask doors for ``miles_lora``, which is the adapter's name: miles knows no other (miles/utils/lora.py), so that each of
several trainings needs a fleet of its own. Follows WeightTransferProtocol of radixark/miles
(miles/backends/training_utils/weight_update/protocol.py at 0274e4f5), whose updater calls ``begin_sync``, hands the gathered adapter to
``send_bucket`` on sender ranks, then calls ``finalize`` and ``after_engines_resumed``. The engines are not paused, as a paused one
could not show that it applies the version; what runs ends on the one before.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from lorry.collectives import ALONE, Ranks
from lorry.run import Run, open_run

SERVING_TIMEOUT_S = 300.0
ADAPTER = "miles_lora"


def protocol(args: Namespace) -> Any:
    """What ``--custom-weight-transfer-protocol-path`` names: makes a WeightTransferProtocol, on each training rank.

    Raises:
        ValueError: miles trains no adapter.
    """
    from miles.backends.training_utils.weight_update.hf_weight_iterator import WeightUpdatePlacement
    from miles.backends.training_utils.weight_update.protocol import WeightTransferProtocol

    if not getattr(args, "lora_rank", 0):
        raise ValueError("lorry.miles sends adapters alone; set --lora-rank, or another --update-weight-transfer-mode")
    settings = {"supports_lora": True, "use_weight_update_session": False, "required_placement": WeightUpdatePlacement(gather_pp=True)}
    return type("LorryProtocol", (_Publishing, WeightTransferProtocol), settings)(args)  # miles asks for its own class


class _Publishing:
    """Before miles' own class."""

    update_weight_metrics: dict[str, float]

    def __init__(self, args: Namespace) -> None:
        super().__init__(args)  # type: ignore[call-arg]
        self._config = {"peft_type": "LORA", "r": args.lora_rank, "lora_alpha": args.lora_alpha}  # the modules are those of the tensors
        self._run: Run | None = None
        self._tensors: dict[str, Any] = {}

    def connect(self, rollout_engines: Any, *pairing: Any, **more: Any) -> None:
        """The first rank of all sends; no engine is dialled."""
        self.rollout_engines = rollout_engines
        self.is_sender = Ranks().rank == 0

    def begin_sync(self, weight_version: int, iter_buckets: Any) -> bool:
        """A version begins."""
        self._tensors = {}
        return True

    def send_bucket(self, bucket: Iterable[tuple[str, Any]], *version: Any) -> None:
        """Keeps the adapter's tensors, ``{lora_name}:{hf_key}``; the frozen base, where miles sends it too, engines have."""
        for name, tensor in bucket:
            _, is_adapter, key = name.partition(":")
            if is_adapter:
                self._tensors[key] = tensor.detach().to("cpu", copy=True)  # buckets are used again

    def finalize(self, weight_version: int) -> None:
        """Publishes what the rank has sent and waits until it is served.

        Raises:
            RuntimeError: no tensor of an adapter came; LorryError, TimeoutError: it is not served.
        """
        if not self.is_sender:
            return
        if not self._tensors:
            raise RuntimeError("miles sent no LoRA weights; is the model wrapped with --lora-rank?")
        if self._run is None:
            self._run = open_run(ADAPTER, group=ALONE)
        began = time.monotonic()
        self._run.publish(self._tensors, version=weight_version, config=self._config).wait("serving", SERVING_TIMEOUT_S)
        self._tensors = {}
        self.update_weight_metrics |= {"lorry/version": float(weight_version), "lorry/serving_s": time.monotonic() - began}
