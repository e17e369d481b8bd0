"""verl's own checkpoint manager with the backend of `lorry.verl`: each step's adapter is served before rollouts go on.

Of verl are the manager and its order, the registry, the import of custom backends, and how an adapter is collected from the model. Ray is stood in for: a
worker group is a list of engines that are called in this process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import pathlib
import types

import pytest
import torch
from lorry.errors import LorryError, SyncFailed
from peft import PeftModel
from testing import foreign
from testing.engines import ROOT
from testing.waiting import until
from transformers import LlamaForCausalLM

foreign.add_frameworks()
import verl  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from verl.checkpoint_engine import base  # noqa: E402
from verl.utils.fsdp_utils import collect_lora_params  # noqa: E402
from verl.workers.config import CheckpointEngineConfig  # noqa: E402

VERL = pathlib.Path(verl.__file__).parent
EXAMPLE = ROOT / "examples" / "frameworks" / "use_verl.yaml"
ADAPTER = "verl-policy"
ACTORS, ROLLOUTS = 2, 2


def checkpoint_engine(layered_summon):
    """Its settings, of the example and what stands beside it in verl's own file."""
    settings = OmegaConf.create({"actor_rollout_ref": {"rollout": {"layered_summon": layered_summon}}})
    merged = OmegaConf.to_container(OmegaConf.merge(settings, OmegaConf.load(EXAMPLE)), resolve=True)
    return CheckpointEngineConfig(**merged["actor_rollout_ref"]["rollout"]["checkpoint_engine"])


@pytest.fixture
def config(world, monkeypatch):
    addresses = world.fleet.addresses()
    monkeypatch.setenv("LORRY_STORE", addresses["store"])
    monkeypatch.setenv("LORRY_ORCHESTRATOR", addresses["orchestrator"])
    return checkpoint_engine(layered_summon=False)


class TrainingEngine:
    """verl's FSDPEngine, of which the backend calls one method; collects by verl's own function."""

    def __init__(self, tiny):
        model = LlamaForCausalLM.from_pretrained(tiny / "model", torch_dtype=torch.float32)
        self.model = PeftModel.from_pretrained(model, tiny / "adapters" / "v1", is_trainable=True)

    def train(self) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if "lora_B" in name:
                    parameter.add_(0.01)

    def get_per_tensor_param(self, layered_summon=False, base_sync_done=False):
        assert base_sync_done, "the base model's weights were asked for"
        params = collect_lora_params(self.model, layered_summon, base_sync_done)
        return params.items(), self.model.peft_config["default"].to_dict()


class Group:
    """verl's RayWorkerGroup and its workers (workers/engine_workers.py, CheckpointEngineWorker), each an engine of the backend."""

    def __init__(self, config, size, training=None):
        self.world_size, self.training, self.received = size, training, []
        kwargs = config.engine_kwargs[config.backend]
        master = [{"is_master": rank == 0} for rank in range(size)] if training else [{}] * size
        self.engines = [base.CheckpointEngineRegistry.new(config.backend, bucket_size=1, **one, **kwargs) for one in master]

    def execute_checkpoint_engine(self, method, **kwargs):
        each = [{k: v[i] for k, v in kwargs.items()} for i in range(self.world_size)]
        return [getattr(engine, name)(**one) for engine, name, one in zip(self.engines, method, each, strict=True)]

    def update_weights(self, global_steps=None, mode=None):
        if self.training is not None:
            assert mode == "delta_sharded", "verl gives a stream of weights to any other"
            return [engine.send_weights(self.training, global_steps=global_steps) for engine in self.engines]
        return [self._receive(engine, global_steps) for engine in self.engines]

    async def _receive(self, engine, global_steps):
        self.received += [name async for name, _ in engine.receive_weights(global_steps=global_steps)]


class Replica:
    """verl's RolloutReplica: pauses its engine as vLLMHttpServer does (workers/rollout/vllm_rollout/vllm_async_server.py), and keeps what it is told."""

    def __init__(self, engine):
        self.engine, self.told, self.workers = engine, [], []

    async def abort_all_requests(self, reject_request=False):
        self.told.append("abort")
        assert self.engine.call("POST", "/pause?mode=abort")[0] == 200

    async def release_kv_cache(self):
        self.told.append("release")

    async def resume_kv_cache(self):
        self.told.append("resume cache")

    async def resume_generation(self):
        self.told.append("resume")
        assert self.engine.call("POST", "/resume")[0] == 200


def await_all(references):
    """What ray.get does, of coroutines and of results; its caller is in a loop, so in a thread."""

    async def each():
        return [await one if inspect.isawaitable(one) else one for one in references]

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, each()).result()


@pytest.fixture
def manager(world, config, tiny, monkeypatch):
    monkeypatch.setattr(base, "ray", types.SimpleNamespace(get=await_all))
    replica = Replica(world.engines["vllm"])
    made = base.CheckpointEngineManager(config, None, [replica])  # imports lorry.verl, as each of verl's workers does
    made.actor_wg = Group(config, ACTORS, TrainingEngine(tiny))
    rollout = Group(config, ROLLOUTS)
    monkeypatch.setattr(base, "RayWorkerGroup", lambda **_: rollout)
    return types.SimpleNamespace(update=made.update_weights, training=made.actor_wg.training, replica=replica, rollout=rollout)


def answered_by(world, version):
    answer = world.doors["vllm"].ask(ADAPTER)
    return answer if answer.status == 200 and answer.version == version else None


def test_each_step_is_served_once_rollouts_go_on(world, manager, tmp_path):
    run_before = world.latest(ADAPTER)[0]
    for step in (1, 2, 5):
        manager.training.train()
        manager.training.model.save_pretrained(tmp_path / f"v{step}")
        manager.replica.told.clear()
        told = manager.update(global_steps=step)
        assert (told["lorry/run"], told["lorry/version"]) == (run_before + 1, step), "what an agent loop makes its X-Lorry-Min-Version of"
        assert manager.replica.told == ["abort", "release", "resume cache", "resume"]
        answer = until(lambda s=step: answered_by(world, s), f"the door answers with v{step}")
        assert answer.run == run_before + 1, "one run, opened once"
        world.judge(answer, tmp_path / f"v{step}")
    assert manager.rollout.received == []


@pytest.mark.parametrize("layered_summon", [False, True])
def test_the_adapter_is_gathered_as_verls_rollout_says(manager, layered_summon):
    asked = {}

    def get_per_tensor_param(**how):
        asked.update(how)
        return manager.training.get_per_tensor_param(**how)

    (other,) = Group(checkpoint_engine(layered_summon), 1).engines
    asyncio.run(other.send_weights(types.SimpleNamespace(get_per_tensor_param=get_per_tensor_param), global_steps=1))
    assert asked == {"layered_summon": layered_summon, "base_sync_done": True}


def engine(settings, **more):
    return base.CheckpointEngineRegistry.new(settings.backend, bucket_size=1, adapter=ADAPTER, is_master=True, **more)


def test_what_carries_no_adapter_is_told(manager, config):
    with pytest.raises(ValueError, match=r"model.lora.merge=False.*delta_sharded"):
        asyncio.run(engine(config).send_weights(iter([("model.embed_tokens.weight", torch.zeros(1))]), global_steps=1))
    with pytest.raises(ValueError, match="global_steps="):
        asyncio.run(engine(config).send_weights(iter([])))


def test_a_stream_of_adapter_tensors_is_published_too(world, manager, config):
    tensors, fields = manager.training.get_per_tensor_param(base_sync_done=True)
    asyncio.run(engine(config, config=fields).send_weights(iter(tensors), global_steps=3))
    until(lambda: world.latest(ADAPTER)[1] == 3, "v3 is latest")


def test_the_example_has_settings_that_verl_knows_and_a_mode_that_asks_its_backend():
    """The other modes make no manager but one whose backend is "naive": not one version would be published."""
    example = OmegaConf.load(EXAMPLE)
    own = OmegaConf.load(VERL / "trainer" / "config" / "_generated_ppo_trainer.yaml")
    settings = OmegaConf.merge(own, example)
    assert own.keys() == settings.keys() and own.actor_rollout_ref.rollout.keys() == settings.actor_rollout_ref.rollout.keys()
    assert settings.trainer.use_v1
    trainers = {path.stem.removeprefix("trainer_"): path.read_text() for path in (VERL / "trainer" / "ppo" / "v1").glob("trainer_*.py")}
    assert 'checkpoint_engine_config.backend = "naive"' in trainers["base"]
    asking = {mode for mode, source in trainers.items() if mode != "base" and "CheckpointEngineManager(" in source}
    assert settings.trainer.v1.trainer_mode in asking == {"separate_async"}
    assert settings.actor_rollout_ref.hybrid_engine is False, "whose replicas get copies"
    assert settings.actor_rollout_ref.rollout.agent.default_agent_loop != own.actor_rollout_ref.rollout.agent.default_agent_loop


def test_a_replica_whose_rollouts_ask_no_door_refuses_its_first_update(config):
    """It would answer with the base model, whatever the actor publishes."""
    with pytest.raises(ValueError, match=r"base model for ever.*rollouts_at_doors=true"):
        engine(config).receive_weights(global_steps=1)


def fails_with(error):
    def wait(until_, timeout):
        raise error

    return types.SimpleNamespace(wait=wait)


def test_a_version_that_could_not_be_served_is_told_once_at_the_next(world, manager, config):
    one = engine(config)
    one._before = fails_with(SyncFailed("r1.11: every engine refuses it", "ENGINE_REFUSED", "FAILED_PRECONDITION"))
    with pytest.raises(SyncFailed, match="r1.11"):
        asyncio.run(one.send_weights(manager.training, global_steps=12))
    asyncio.run(one.send_weights(manager.training, global_steps=12))
    until(lambda: world.latest(ADAPTER)[1] == 12, "v12 is latest")


def test_a_version_that_could_not_be_stored_is_told_once(manager, config):
    stored = types.SimpleNamespace(wait=lambda until_, timeout: None)
    handles = [fails_with(LorryError("the store is full", "QUOTA_EXCEEDED", "RESOURCE_EXHAUSTED")), stored]
    one = engine(config)
    one._run = types.SimpleNamespace(number=1, publish=lambda *_, **__: handles.pop(0))
    with pytest.raises(LorryError, match="QUOTA_EXCEEDED"):
        asyncio.run(one.send_weights(manager.training, global_steps=12))
    asyncio.run(one.send_weights(manager.training, global_steps=12))
    assert handles == []
