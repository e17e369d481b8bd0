"""AReaL's own rollout engines with the backends of `lorry.areal`: its five unload cases as behaviours, whose order is that of
FSDPEngine._update_weights_from_disk (areal/engine/fsdp_engine.py in AReaL 1.0.4)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import runpy
import shutil
import sys
import time

import pytest
from testing import foreign
from testing.engines import KINDS, ROOT
from testing.waiting import until

sys.path.append(str(ROOT / "tests" / "fakes"))
from engine_core import expected_tokens  # noqa: E402

foreign.add_frameworks()
import areal.utils.name_resolve as name_resolve  # noqa: E402
from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig, NameResolveConfig  # noqa: E402
from areal.api.io_struct import ModelRequest, WeightUpdateMeta  # noqa: E402
from areal.utils import names  # noqa: E402
from lorry import areal as adopted  # noqa: E402

ENGINES = KINDS
EXAMPLE = ROOT / "examples" / "frameworks" / "use_areal.py"
KEEP = 4
UPDATE_S = 120.0
UNLOAD_S = 20.0
LONG = 200  # tokens, a tenth of a second each: longer than an update takes
PROMPT = [5, 17, 101, 33]


@pytest.fixture(autouse=True)
def environment(world, tmp_path, monkeypatch):
    addresses = world.fleet.addresses()
    monkeypatch.setenv("LORRY_STORE", addresses["store"])
    monkeypatch.setenv("LORRY_ORCHESTRATOR", addresses["orchestrator"])
    name_resolve.reconfigure(NameResolveConfig(type="nfs", nfs_record_root=str(tmp_path / "names")))


class Training:
    """What AReaL's trainer and FSDPEngine do on rank 0 around a rollout engine."""

    def __init__(self, world, make_adapter, folder, name, kind="sglang", keep=4):
        self.make, self.name, self.folder = make_adapter, name, folder
        self.config = InferenceEngineConfig(
            experiment_name="e", trial_name=name, backend=f"{kind}:d1", use_lora=True, lora_name=name, max_head_offpolicyness=keep - 2,
            pause_grace_period=0.0, request_retries=1, setup_timeout=60.0)
        self.meta = WeightUpdateMeta(type="disk", path=str(folder / "weight_update"), use_lora=True, lora_name=name, lora_keep_versions=keep)
        connect = runpy.run_path(str(EXAMPLE))["connect"]
        self.rollout = connect(self.config, name, [world.fleet.door(kind).removeprefix("http://")], rank=0, initial_lora=make_adapter(0))

    def update(self, version: int) -> float:
        """Seconds from the pause to the resumption."""
        meta, began = self.meta.with_version(version), time.monotonic()
        self.rollout.pause_generation()
        future = self.rollout.update_weights_from_disk(meta)
        shutil.copytree(self.make(version), meta.path)
        saved = names.update_weights_from_disk(self.config.experiment_name, self.config.trial_name, self.rollout.get_version())
        name_resolve.add(saved, str(time.time()), keepalive_ttl=120)
        future.result(UPDATE_S)
        self.rollout.continue_generation()
        self.rollout.set_version(version)
        return time.monotonic() - began

    def rolls_out(self, version: int | None = None) -> None:
        """By the engine's own version, or as a request that began under an older one; asserts whose bytes answered."""
        newest = self.rollout.get_version()
        version = newest if version is None else version
        self.rollout.set_version(version)
        try:
            self.judge(self.generate(4), version)
        finally:
            self.rollout.set_version(newest)

    def generate(self, tokens: int):
        settings = GenerationHyperparameters(max_new_tokens=tokens, greedy=True, ignore_eos=True, lora_name=self.name)
        return asyncio.run(self.rollout.agenerate(ModelRequest(input_ids=list(PROMPT), gconfig=settings)))

    def judge(self, answer, version: int) -> None:
        assert answer.output_tokens == expected_tokens(self.make(version), PROMPT, len(answer.output_tokens)), f"v{version}: other bytes answered"
        assert set(answer.output_versions) == {version}


@pytest.fixture
def training(world, make_adapter, tmp_path):
    made: list[Training] = []

    def make(name, **settings):
        made.append(Training(world, make_adapter, tmp_path / name, name, **settings))
        return made[-1]

    yield make
    for one in made:
        one.rollout.destroy()
        world.admin.archive(one.name)  # its slots are free again


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_versions_are_kept_and_those_before_them_unloaded(world, training, kind):
    run = training(f"lora-{kind}", kind=kind)
    run.rolls_out(0)
    for version in range(1, 11):
        run.update(version)
        for kept in range(max(0, version - KEEP + 1), version + 1):
            run.rolls_out(kept)
    for member in world.doors:
        until(lambda m=member: not world.reported(m, 6, run.name), f"v6 left {member}")
    assert world.doors[kind].ask(f"{run.name}@6").status in (404, 409)


def test_with_few_versions_none_is_unloaded(training):
    run = training("lora-few")
    run.update(1)
    run.update(2)
    run.rolls_out(1)
    run.rolls_out(2)


def test_the_store_takes_a_policy_that_keeps_one_version(world):
    world.admin.create("lora-one", adopted.keep_policy(1))
    assert world.admin.policy("lora-one")["keep"] == 1


def test_keeping_0_means_all(world, training):
    run = training("lora-all", keep=0)
    for version in range(1, 6):
        run.update(version)
    for version in range(1, 6):
        run.rolls_out(version)


def test_what_runs_over_an_update_is_of_the_version_that_it_began_with(world, training):
    run, engine = training("lora-over"), world.engines["sglang"]
    run.update(1)
    engine.set(token_delay_s=0.1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(run.generate, LONG)
        until(lambda: engine.state()["running"], "the request runs")
        run.update(2)
        assert run.rollout.get_version() == 2 and not answer.done(), "the update waited for it"
        run.judge(answer.result(UPDATE_S), 1)
    engine.set(token_delay_s=0)
    run.rolls_out()


def test_without_lora_the_request_is_areals_own(training):
    backend = training("lora-none").rollout._engine.backend
    meta = WeightUpdateMeta(type="disk", path="/w")
    (request,) = backend.build_disk_weight_update_requests(meta).requests
    assert (request.endpoint, request.payload["model_path"], request.best_effort) == ("/update_weights_from_disk", "/w", False)
    backend._use_lora = False
    assert backend.get_pause_request().endpoint == "/pause_generation"
    assert backend.get_resume_request().endpoint == "/continue_generation"


def test_what_is_missing_is_told(training):
    backend = training("lora-told").rollout._engine.backend
    with pytest.raises(ValueError, match="Version is required"):
        backend.build_disk_weight_update_requests(WeightUpdateMeta(type="disk", use_lora=True, lora_name="lora-told"))
    with pytest.raises(ValueError, match=r'open_run\("other"'):
        backend.build_disk_weight_update_requests(WeightUpdateMeta(type="disk", use_lora=True, lora_name="other", version=1))


def test_an_unload_that_takes_long_delays_no_update(world, training):
    run, door = training("lora-slow", keep=2), world.doors["sglang"]
    for version in (1, 2):
        run.update(version)
    until(lambda: not any("-v0-" in name for name in world.engines["sglang"].state()["listed"]), "v0 has been unloaded")
    world.engines["sglang"].set(unload_delay_s=UNLOAD_S)
    run.update(3)
    until(lambda: world.told("sglang", 1, "lora-slow").startswith("UNLOADING"), "v1 is being unloaded")
    world.engines["sglang"].set(unload_delay_s=0)
    assert run.update(4) < UNLOAD_S
    # By and by such an engine is left alone; until it has let go its door answers by this version or not at all.
    assert door.ask("lora-slow@4").status in (200, 409, 503)
