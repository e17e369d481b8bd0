"""Frameworks that PyPI lacks, with `lorry.astraflow` and `lorry.miles`, by their interfaces as recorded here.

AstraFlow: RemoteInfEngine of astraflow/raas/engine/remote_inf_engine.py and what sglang_remote.py has around it, Infini-AI-Lab/astraflow at a20ca42
(its pull request 20) and at 343e808 (main), and what raas/server/manager.py does for an update: pause, load, continue, the version, and the eval
engines' names. miles: WeightTransferProtocol of
miles/backends/training_utils/weight_update/protocol.py, radixark/miles at 0274e4f5, and the order of WeightUpdater.update_weights beside it.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import runpy
import sys
import types
from argparse import Namespace

import pytest
import torch
from lorry import PublishHandle, miles
from lorry.astraflow import adopt
from safetensors.torch import load_file
from testing.engines import ROOT, http_json
from testing.waiting import DEADLINE_S, until

sys.path.append(str(ROOT / "tests" / "fakes"))
from engine_core import expected_tokens  # noqa: E402

EXAMPLES = ROOT / "examples" / "frameworks"
ENGINES = ("sglang",)


@pytest.fixture(autouse=True)
def addresses(world, monkeypatch):
    told = world.fleet.addresses()
    monkeypatch.setenv("LORRY_STORE", told["store"])
    monkeypatch.setenv("LORRY_ORCHESTRATOR", told["orchestrator"])


# --- AstraFlow ---


@dataclasses.dataclass
class HttpRequest:
    endpoint: str
    payload: dict
    method: str = "POST"


class SGLangBackend:
    def build_generation_request(self, req, lora_name):
        return HttpRequest("/generate", {"input_ids": req, "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True},
                                         "return_logprob": True, **({"lora_path": lora_name} if lora_name else {})})


class SGLangBackendOfMain(SGLangBackend):
    def build_generation_request(self, req, with_lora):
        return super().build_generation_request(req, "lora_1" if with_lora else None)


class RemoteInfEngine:
    def __init__(self, door, backend):
        self.backend, self.door, self.sent, self.version = backend, door, [], 0
        self.lora_initialized, self._current_lora_name = False, None

    def load_weights_from_path(self, path, use_lora=False):
        assert not use_lora, "the door was not asked"
        self.sent.append(("load", path))

    def pause_generation(self):
        self.sent.append("pause")

    def continue_generation(self):
        self.sent.append("continue")

    def set_version(self, version):
        self.version = version

    def generate(self, prompt):
        lora = self.lora_initialized if isinstance(self.backend, SGLangBackendOfMain) else self._current_lora_name
        request = self.backend.build_generation_request(prompt, lora)
        return request.payload.get("lora_path"), http_json(request.method, self.door + request.endpoint, request.payload)


class SGLangEngine:
    def __init__(self, door, backend=SGLangBackend):
        self._engine = RemoteInfEngine(door, backend())

    def __getattr__(self, name):
        return getattr(self._engine, name)


def update(engine, path, version, evals=()):
    engine.pause_generation()
    engine.load_weights_from_path(str(path), use_lora=True)
    engine.continue_generation()
    engine.set_version(version)
    for each in evals:
        each._engine.lora_initialized, each._engine._current_lora_name = True, engine._engine._current_lora_name


def tokens_of(reply):
    status, body = reply
    assert status == 200, body
    return [entry[1] for entry in body["meta_info"]["output_token_logprobs"]]


@pytest.mark.parametrize("backend", [SGLangBackend, SGLangBackendOfMain])
def test_astraflow_and_its_eval_engine_ask_by_what_is_served(world, make_adapter, backend):
    door, adapter = world.fleet.door("sglang"), f"astra-{backend.__name__.lower()}"
    engine, evals = SGLangEngine(door, backend), SGLangEngine(door, backend)
    runpy.run_path(str(EXAMPLES / "use_astraflow.py"))["connect"](engine, evals, adapter, str(make_adapter(0)))
    for version in range(5):
        if version > 0:
            update(engine, make_adapter(version), version, [evals])
        for each in (engine, evals):
            name, reply = each.generate([5, 17, 101, 33])
            assert name == f"{adapter}@r1.{version + 1}"
            assert tokens_of(reply) == expected_tokens(make_adapter(version), [5, 17, 101, 33], 4)
    assert engine.sent == [], "no server was called"
    engine.load_weights_from_path("/full")
    assert engine.sent == [("load", "/full")]


def test_a_load_that_fails_leaves_the_name_as_it_was(world, make_adapter, tmp_path):
    engine = SGLangEngine(world.fleet.door("sglang"))
    runpy.run_path(str(EXAMPLES / "use_astraflow.py"))["connect"](engine, SGLangEngine(""), "astra-failed", str(make_adapter(1)))
    with pytest.raises(Exception, match="adapter_config.json"):
        update(engine, tmp_path, 2)
    assert engine.generate([5])[0] == "astra-failed@r1.1"
    update(engine, make_adapter(2), 2)
    assert engine.generate([5])[0] == "astra-failed@r1.2"


def test_a_version_that_is_served_too_late_uses_up_its_number(world, make_adapter, monkeypatch):
    """It is stored, so the next load cannot have its number."""
    own_wait = PublishHandle.wait

    def too_late(handle, until_, timeout):
        own_wait(handle, "stored", DEADLINE_S)
        raise TimeoutError(f"{handle} is stored, but not serving yet")

    engine = SGLangEngine(world.fleet.door("sglang"))
    with world.open_run("astra-late") as run:
        adopt(engine, run)
        update(engine, make_adapter(1), 1)
        with monkeypatch.context() as late, pytest.raises(TimeoutError):
            late.setattr(PublishHandle, "wait", too_late)
            update(engine, make_adapter(2), 2)
        assert engine.generate([5])[0] == "astra-late@r1.1"
        update(engine, make_adapter(3), 2)
        name, reply = engine.generate([5])
        assert name == "astra-late@r1.3" and tokens_of(reply) == expected_tokens(make_adapter(3), [5], 4)


def test_a_raas_whose_run_is_over_is_answered_by_no_other_run(world, make_adapter):
    """A second process of the same adapter counts from 1, too."""
    first, second = (SGLangEngine(world.fleet.door("sglang")) for _ in range(2))
    with world.open_run("astra-two") as run:
        adopt(first, run)
        update(first, make_adapter(1), 1)
    with world.open_run("astra-two") as run:
        adopt(second, run)
        update(second, make_adapter(2), 1)
    assert tokens_of(second.generate([5])[1]) == expected_tokens(make_adapter(2), [5], 4)
    name, reply = first.generate([5])
    assert name == "astra-two@r1.1"
    assert reply[0] == 409 or tokens_of(reply) == expected_tokens(make_adapter(1), [5], 4)


# --- miles ---


@dataclasses.dataclass(frozen=True)
class WeightUpdatePlacement:
    gather_pp: bool


class WeightTransferProtocol:
    required_placement = WeightUpdatePlacement(gather_pp=False)
    supports_lora = False
    use_weight_update_session = True
    needs_base_resync_for_lora = False

    def __init__(self, args):
        self.args, self.rollout_engines, self.is_sender, self.group_name, self.update_weight_metrics = args, None, None, "miles", {}

    def after_base_weights(self):
        pass

    def after_engines_resumed(self):
        pass

    def pop_metrics(self):
        metrics, self.update_weight_metrics = self.update_weight_metrics, {}
        return metrics


LORA_ADAPTER_NAME = "miles_lora"  # miles/utils/lora.py: by which its rollouts ask, in lora_path


def update_weights(protocol, version, buckets):
    """WeightUpdater.update_weights, for a protocol without a session at the engines."""
    assert protocol.supports_lora and not protocol.use_weight_update_session and protocol.required_placement.gather_pp
    assert protocol.begin_sync(version, lambda **_: iter(buckets))
    for bucket in buckets:
        if protocol.is_sender:
            protocol.send_bucket(bucket)
    protocol.after_base_weights()
    protocol.finalize(version)
    protocol.after_engines_resumed()


@pytest.fixture
def make_protocol(monkeypatch):
    base = "miles.backends.training_utils.weight_update"
    modules = {f"{base}.protocol": {"WeightTransferProtocol": WeightTransferProtocol},
               f"{base}.hf_weight_iterator": {"WeightUpdatePlacement": WeightUpdatePlacement}}
    parents = {".".join(name.split(".")[:i]) for name in modules for i in range(1, len(name.split(".")))}
    for name in [*parents, *modules]:
        module = types.ModuleType(name)
        module.__dict__.update(modules.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)
    path = re.search(r"--custom-weight-transfer-protocol-path (\S+)", (EXAMPLES / "use_miles.sh").read_text())[1]
    assert path == "lorry.miles.protocol"
    return lambda **args: miles.protocol(Namespace(**{"lora_rank": 8, "lora_alpha": 16, "target_modules": ["q_proj"], **args}))


def buckets_of(folder: pathlib.Path):
    """The adapter in two buckets, and what miles sends of the base."""
    tensors = [(f"{LORA_ADAPTER_NAME}:{name}", tensor) for name, tensor in load_file(folder / "adapter_model.safetensors").items()]
    return [[("model.embed_tokens.weight", torch.zeros(2, 2))], tensors[:5], tensors[5:]]


def test_miles_syncs_its_adapter(world, make_adapter, make_protocol):
    protocol = make_protocol()
    assert isinstance(protocol, WeightTransferProtocol), "miles asks for its own class"
    protocol.connect([], None, None, [], object(), WeightUpdatePlacement(True), "all")
    for version in range(1, 4):
        buckets = buckets_of(make_adapter(version))
        update_weights(protocol, version, buckets)
        answer = until(lambda v=version: next((a for a in [world.doors["sglang"].ask(LORA_ADAPTER_NAME)] if a.version == v), None), f"v{version}")
        world.judge(answer, make_adapter(version))
        assert protocol.pop_metrics()["lorry/version"] == version


def test_buckets_are_copied(world, make_adapter, make_protocol):
    protocol = make_protocol()
    protocol.connect([], None, None, [], object(), WeightUpdatePlacement(True), "all")
    buckets = buckets_of(make_adapter(9))
    protocol.begin_sync(9, None)
    for bucket in buckets:
        protocol.send_bucket(bucket)
        for _, tensor in bucket:
            tensor.zero_()
    protocol.finalize(9)
    answer = until(lambda: next((a for a in [world.doors["sglang"].ask(LORA_ADAPTER_NAME)] if a.version == 9), None), "v9")
    world.judge(answer, make_adapter(9))


def test_what_miles_lacks_is_told(make_protocol):
    with pytest.raises(ValueError, match="--lora-rank"):
        make_protocol(lora_rank=0)
    protocol = make_protocol()
    protocol.connect([], None, None, [], object(), WeightUpdatePlacement(True), "all")
    protocol.begin_sync(1, None)
    with pytest.raises(RuntimeError, match="no LoRA weights"):
        protocol.finalize(1)
