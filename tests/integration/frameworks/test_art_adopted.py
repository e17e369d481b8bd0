"""ART's own leases with the transport of `lorry.art`: an evaluation asks by a name that answers with exactly its step for as long as it runs.

Of ART (openpipe-art 0.5.23, written for Python 3.12) single files and classes are read: how a backend leases an exact step
(LocalBackend), how a name is pinned (adapter_leases), and the service whose loading the transport takes over (UnslothService).
"""

from __future__ import annotations

import asyncio
import contextlib
import runpy
import threading
import types

import pytest
from lorry.art import keep_policy
from lorry.errors import LorryError
from testing import foreign
from testing.engines import KINDS, ROOT
from testing.waiting import DEADLINE_S, until

foreign.add_frameworks()

ENGINES = KINDS
EXAMPLE = ROOT / "examples" / "frameworks" / "use_art.py"
ADAPTER = "art-policy"
OFF_POLICY = 2
KEEP = OFF_POLICY + 1

leases = foreign.load_file("art.adapter_leases", "art/adapter_leases.py")
managers = foreign.load_file("art.local.adapter_leases", "art/local/adapter_leases.py")


def checkpoint_dir(model_dir, step):
    return str(model_dir / str(step))


LocalBackend = foreign.class_of(
    "art/local/backend.py", "LocalBackend", ["exact_adapter_lease", "_adapter_lease_manager"],
    {"asynccontextmanager": contextlib.asynccontextmanager, "pin_inference_target": leases.pin_inference_target,
     "AdapterLeaseManager": managers.AdapterLeaseManager, "get_step_checkpoint_dir": checkpoint_dir, "get_model_dir": lambda model, art_path: art_path})
UnslothService = foreign.class_of(
    "art/unsloth/service.py", "UnslothService",
    ["rollout_weight_update_mode", "register_lora_for_step", "_load_rollout_lora_for_step", "acquire_exact_adapter", "release_exact_adapter",
     "prune_loaded_adapters"], {})


class Backend(LocalBackend):
    def __init__(self, folder, service):
        self._path, self._service, self._adapter_leases = folder, service, {}

    async def _get_service(self, model):
        return self._service

    def _model_storage_key(self, model):
        return model.name


@pytest.fixture
def steps(world, make_adapter, tmp_path, monkeypatch):
    """Training that begins at step 0, which ART's service has given its vLLM. steps.train(step): as it does once a step's checkpoint is written;
    steps.lease(step): as its trainer does for an evaluation."""
    addresses = world.fleet.addresses()
    monkeypatch.setenv("LORRY_STORE", addresses["store"])
    monkeypatch.setenv("LORRY_ORCHESTRATOR", addresses["orchestrator"])
    service, model = UnslothService(), types.SimpleNamespace(name=ADAPTER)
    service.config, service.output_dir, service._latest_step, service.model_name = {}, str(tmp_path), 0, ADAPTER
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "0000").symlink_to(make_adapter(0))
    transport = asyncio.run(runpy.run_path(str(EXAMPLE))["connect"](service, ADAPTER, OFF_POLICY))
    backend = Backend(tmp_path, service)

    async def train(step):
        (tmp_path / str(step)).symlink_to(make_adapter(step))
        await service._load_rollout_lora_for_step(str(tmp_path / str(step)), step)
        await service.prune_loaded_adapters(retain_steps={step})
        assert service._latest_step == step

    def judge(name, step):
        for member in world.doors:
            answer = world.doors[member].ask(name)
            assert answer.status == 200, f"{member}: {answer.message}"
            world.judge(answer, make_adapter(step))

    return types.SimpleNamespace(train=train, judge=judge, service=service, transport=transport,
                                 lease=lambda step: backend.exact_adapter_lease(model, step), name=lambda: leases.pinned_inference_name(ADAPTER))


def test_an_exact_step_is_leased_while_training_goes_on(world, steps):
    async def evaluate():
        await steps.train(1)
        async with steps.lease(1):
            name = steps.name()
            for step in range(2, 2 + 2 * KEEP):
                await steps.train(step)
                steps.judge(name, 1)
                steps.judge(f"{ADAPTER}@{step}", step)
        return name

    name = asyncio.run(evaluate())
    for member in world.doors:  # nobody holds it any more
        until(lambda m=member: world.doors[m].ask(name).status in (404, 409), f"{member} let v1 go")


def test_rollouts_and_evaluations_begin_before_any_training(world, steps):
    async def evaluate():
        async with steps.lease(0):
            steps.judge(steps.name(), 0)
        steps.judge(f"{ADAPTER}@0", 0)

    asyncio.run(evaluate())


def test_a_rollout_ends_on_its_step_while_that_is_young_enough(world, steps):
    """By the name that LocalBackend's adapter_lease pins, which asks nothing of the service."""

    async def roll_out():
        for step in range(1, 2 + OFF_POLICY):
            await steps.train(step)
        steps.judge(f"{ADAPTER}@1", 1)

    asyncio.run(roll_out())
    assert world.admin.policy(ADAPTER)["keep"] == KEEP
    assert keep_policy(None) == {"keep": "all"}
    assert keep_policy(80) == {"keep": 64}, "no pool remembers more"


def test_the_store_takes_the_policy_of_rollouts_that_are_never_off(world):
    world.admin.create("on-policy", keep_policy(0))
    assert world.admin.policy("on-policy")["keep"] == 1
    world.admin.set_policy("on-policy", {"keep": 4, "max_staleness": 3})
    world.admin.create("on-policy", keep_policy(3))
    assert world.admin.policy("on-policy")["max_staleness"] == 3, "an operator's own stays"


def test_a_service_of_another_adapter_is_told(steps):
    steps.service.model_name = "another"
    with pytest.raises(ValueError, match=r"rollouts of this service ask for another@STEP.*open_run\('another'\)"):
        asyncio.run(steps.transport.attach(steps.service))


def test_a_step_that_is_registered_is_the_newest(world, steps, make_adapter):
    asyncio.run(steps.service.register_lora_for_step(1, str(make_adapter(1))))
    steps.judge(f"{ADAPTER}@{steps.service._latest_step}", 1)


def test_a_service_that_is_not_supported_is_told(steps):
    class MegatronService:
        pass

    class Proxy:  # as ART's, of a service in a child process
        def __getattr__(self, name):
            return getattr(steps.service, name)

    in_flight = UnslothService()
    in_flight.config = {"rollout_weight_update_mode": "in_flight_lora"}
    for service in (MegatronService(), Proxy(), in_flight):
        with pytest.raises(ValueError, match="in_process=True"):
            asyncio.run(steps.transport.attach(service))
        assert "acquire_exact_adapter" not in vars(service)


def test_a_lease_ends_with_its_last_user(world, steps):
    async def twice():
        await steps.train(1)
        async with steps.lease(1):
            async with steps.lease(1):
                pass
            for step in range(2, 3 + KEEP):
                await steps.train(step)
            steps.judge(steps.name(), 1)
        assert steps.transport._leases == {}

    asyncio.run(twice())


def test_the_end_of_one_evaluation_leaves_the_lease_of_one_that_has_just_begun(world, steps):
    own_release, began, acquired = steps.transport._admin.release, threading.Event(), threading.Event()

    def slow_release(*lease):
        began.set()
        assert acquired.wait(DEADLINE_S)
        return own_release(*lease)

    async def overlap():
        await steps.train(1)
        await steps.service.acquire_exact_adapter(1, "")
        steps.transport._admin.release = slow_release
        ending = asyncio.create_task(steps.service.release_exact_adapter(1))
        assert await asyncio.to_thread(began.wait, DEADLINE_S)
        async with steps.lease(1):
            acquired.set()
            await ending
            for step in range(2, 3 + KEEP):
                await steps.train(step)
            steps.judge(steps.name(), 1)

    asyncio.run(overlap())


def test_a_lease_is_renewed(world, steps):
    steps.transport._lease_s = 1.0

    async def outlive():
        await steps.train(1)
        async with steps.lease(1):
            renewed = asyncio.Event()
            lease, count = steps.transport._lease, 0

            def counted(step, holder):
                nonlocal count
                count += 1
                if count == 6:  # two lifetimes
                    loop.call_soon_threadsafe(renewed.set)
                return lease(step, holder)

            loop = asyncio.get_running_loop()
            steps.transport._lease = counted
            for step in range(2, 3 + KEEP):
                await steps.train(step)
            await asyncio.wait_for(renewed.wait(), 60)
            steps.judge(steps.name(), 1)

    asyncio.run(outlive())


def test_a_step_that_was_never_trained_is_told(world, steps):
    async def ask():
        await steps.train(1)
        async with steps.lease(77):
            pass

    with pytest.raises(LorryError, match="UNKNOWN_VERSION"):
        asyncio.run(ask())
    assert steps.transport._leases == {}
