"""TRL's asynchronous GRPO as it is: its own client, its own check of the server and its own way of saving an adapter, at the door.

The order is that of AsyncGRPOTrainer._sync_weight_lora in TRL 1.16: pause, save, load, resume, unload what is too stale to be named.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import types

import pytest
import torch
from accelerate import Accelerator
from peft import PeftModel
from testing import engines
from testing.engines import SLOT_ARGS
from testing.world import World, judge_fake
from transformers import LlamaForCausalLM

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
trl_trainer = pytest.importorskip("trl.experimental.async_grpo.async_grpo_trainer")
from trl.experimental.async_grpo.vllm_client import VLLMClient  # noqa: E402

MAX_STALENESS = 2
SYNCS = 12
NAME = "trl-policy"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """TRL's `<output_dir>/.vllm_lora`, which the proxy may read."""
    return tmp_path_factory.mktemp("output") / ".vllm_lora"


@pytest.fixture(scope="module")
def world(bin_dir, tiny, directory, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    directory.mkdir()
    engine = engines.fake("vllm", tiny / "model", log_dir=folder, args=SLOT_ARGS["vllm"])
    with World(bin_dir, folder, engine, proxy_flags={"bindings-root": directory}) as made:
        yield made


@pytest.fixture(scope="module")
def model(tiny):
    base = LlamaForCausalLM.from_pretrained(tiny / "model", torch_dtype=torch.float32)
    return PeftModel.from_pretrained(base, tiny / "adapters" / "v1", is_trainable=True)


class Trainer:
    """What AsyncGRPOTrainer does with its server, by TRL's own functions."""

    def __init__(self, url: str, model: PeftModel, directory: pathlib.Path) -> None:
        self.client = VLLMClient(url, server_timeout=60)
        self.model, self.directory = model, directory
        self.version = 0
        self._accelerator = Accelerator(cpu=True)

    def name(self, version: int) -> str:
        return f"{NAME}-v{version}"

    def sync(self) -> None:
        version = self.version + 1
        self.client.pause()
        trl_trainer.save_lora_adapter(self.model, self._accelerator, "default", str(self.directory / self.name(version)))
        self.client.load_lora_adapter(self.name(version), str(self.directory / self.name(version)), timeout=120)
        self.client.resume()
        stale = version - (MAX_STALENESS + 1)
        if stale > 0:
            self.client.unload_lora_adapter(self.name(stale))
        if stale > 1:
            shutil.rmtree(self.directory / self.name(stale - 1))
        self.version = version

    def train(self) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if "lora_B" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.01)


def test_trl_syncs_its_adapter_through_the_door(world, model, directory):
    (member,) = world.doors
    door = world.doors[member]
    trainer = Trainer(world.fleet.door(member), model, directory)
    trainer.client.wait_for_server_ready(poll_interval_s=0.2)
    assert trainer.client.get_max_model_len() > 0
    assert trainer.client.get_dtype().startswith("torch.")
    args = types.SimpleNamespace(max_staleness=MAX_STALENESS)
    assert trl_trainer.select_adapter_sync(trainer.client.get_server_info(), model, args), "TRL chooses its adapter sync by itself"

    for _ in range(SYNCS):
        trainer.train()
        trainer.sync()
        newest = trainer.version
        # Rollouts name any version that is not too stale; each is answered by its own bytes.
        for version in range(max(1, newest - MAX_STALENESS), newest + 1):
            answer = door.ask(trainer.name(version))
            assert answer.status == 200, answer.message
            judge_fake(answer, directory / trainer.name(version))
        gone = newest - (MAX_STALENESS + 1)
        if gone > 0:
            refused = door.ask(trainer.name(gone))
            assert (refused.status, refused.reason) == (404, "UNKNOWN_ADAPTER"), refused.message
            assert trainer.name(newest) in refused.message or "did you mean" in refused.message.lower()


def test_an_engine_that_cannot_read_the_directory_is_told_why(world, model, directory, tmp_path):
    (member,) = world.doors
    trainer = Trainer(world.fleet.door(member), model, tmp_path / "elsewhere")
    with pytest.raises(Exception, match="bindings-root"):
        trainer.sync()
    trainer.client.resume()
    with pytest.raises(RuntimeError):  # a 404, which TRL takes for a server without the route
        trainer.client.load_lora_adapter("nothing", str(directory / "nothing"))
