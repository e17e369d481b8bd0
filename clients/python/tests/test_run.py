"""What a run does with the store's answers. The store is a few functions; nothing is dialled here."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from lorry import collectives
from lorry.connection import Connection
from lorry.errors import LorryError
from lorry.run import CORRUPT_MAX, Run
from lorry.store.v1 import store_pb2

STATE = {
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(4, 8),
    "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": torch.ones(8, 4),
}
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["q_proj"], "base_model_name_or_path": "tiny"}


class ForgetfulStore:
    """Lacks no byte; its commits say that the bytes have changed, so many times."""

    def __init__(self, corrupt: int) -> None:
        self.corrupt = corrupt
        self.begun = 0

    def BeginUpload(self, request: store_pb2.BeginUploadRequest) -> store_pb2.BeginUploadResponse:
        self.begun += 1
        return store_pb2.BeginUploadResponse(upload_id=f"u{self.begun}", ticket=b"t", idle_deadline_ms=1000)

    def CommitUpload(self, request: store_pb2.CommitUploadRequest) -> store_pb2.CommitUploadResponse:
        if self.begun <= self.corrupt:
            raise LorryError("what arrived has changed since", "RANGE_CORRUPT", "DATA_LOSS")
        return store_pb2.CommitUploadResponse()


def run_on(store: ForgetfulStore) -> Run:
    def call(method: Callable[[Any], Any], request: Any, budget_s: float) -> Any:
        return method(request)

    connection = cast(Connection, SimpleNamespace(store=store, call=call))
    return Run(connection, "policy", 1, 1, collectives.Ranks())


def test_bytes_that_changed_at_the_store_are_sent_again() -> None:
    store = ForgetfulStore(corrupt=CORRUPT_MAX)
    run_on(store).publish(STATE, version=1, config=CONFIG).wait("stored", 30)
    assert store.begun == CORRUPT_MAX + 1


def test_bytes_that_change_every_time_are_told_of() -> None:
    store = ForgetfulStore(corrupt=1000)
    with pytest.raises(LorryError, match="RANGE_CORRUPT"):
        run_on(store).publish(STATE, version=1, config=CONFIG).wait("stored", 30)
    assert store.begun == CORRUPT_MAX + 1
