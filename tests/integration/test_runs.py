"""A training process that goes back: resumed at 80 after 100 was published, it publishes 81 again with other bytes."""

import lorry
import pytest
from testing.engine_api import EngineApi
from testing.engines import KINDS
from testing.waiting import until
from testing.world import ADAPTER, Traffic


def engine_names(world, member):
    return set(EngineApi(world.engines[member]).listed())


@pytest.fixture(scope="module")
def old(world, make_adapter):
    """The first process: 80, 81 and 100."""
    world.admin.set_policy(ADAPTER, {"keep": {"versions": 4}, "max_staleness": 3})
    run = world.open_run()
    for number in (80, 81, 100):
        world.publish(run, number, make_adapter(number))
    yield run
    run.close()


@pytest.fixture(scope="module")
def new(world, old, make_adapter):
    """The process that replaced it. Its 81 has other bytes."""
    with Traffic(world) as traffic:
        until(lambda: traffic.good() > 4, "traffic flows")
        run = world.open_run(resume_from=80)
        handle = world.publish(run, 81, make_adapter(1081))
        seen = len(traffic.answers)
        until(lambda: len(traffic.answers) > seen + 10, "traffic flows on")
    traffic.check()
    yield run, handle
    run.close()


def test_the_new_run_publishes_a_lower_number_and_it_is_served(world, old, new):
    run, _ = new
    assert run.number == old.number + 1
    assert world.latest() == (run.number, 81)
    for member in KINDS:
        world.prove(world.doors[member].ask(ADAPTER), version=81, run=run.number)


def test_both_81_are_stored_with_their_own_bytes(world, old, new):
    run, handle = new
    digests = {(v.run, v.number): v.digest for v in world.admin.versions(ADAPTER)}
    assert digests[run.number, 81] == handle.digest
    assert digests[old.number, 81] != handle.digest
    assert set(digests) == {(old.number, 80), (old.number, 81), (old.number, 100), (run.number, 81)}


@pytest.mark.parametrize("member", KINDS)
def test_engines_never_confuse_the_two(world, old, new, member):
    run, handle = new
    digests = {(v.run, v.number): v.digest for v in world.admin.versions(ADAPTER)}
    for name in ("policy@81", "policy-v81", "policy"):
        world.prove(world.doors[member].ask(name), version=81, run=run.number)
    world.admin.set_alias(ADAPTER, "before", (old.number, 81))
    until(lambda: world.doors[member].ask("policy@before").status == 200, "the old 81 is loaded")
    answer = world.doors[member].ask("policy@before")
    world.prove(answer, version=81, run=old.number)
    assert answer.digest == digests[old.number, 81] != handle.digest
    both = {n for n in engine_names(world, member) if n.startswith("policy-v81-")}
    assert len(both) == 2, both


@pytest.mark.parametrize("member", KINDS)
def test_the_abandoned_version_leaves(world, new, member):
    until(lambda: not any("-v100-" in n for n in engine_names(world, member)), "100 left the engine")
    answer = world.doors[member].ask("policy@100")
    assert answer.status == 404 or answer.reason == "NOT_LOADED", (answer.status, answer.reason)


def test_the_old_process_is_told_that_it_was_replaced(world, old, new, make_adapter):
    with pytest.raises(lorry.RunFenced) as refused:
        old.publish(make_adapter(101), version=101).wait("stored", 30)
    assert refused.value.reason == "RUN_FENCED"
    assert f"run {world.latest()[0]} is current" in refused.value.message, refused.value.message
    assert (old.number, 101) not in {(v.run, v.number) for v in world.admin.versions(ADAPTER)}


def test_a_process_that_expected_to_be_first_is_refused(world, old, new):
    with pytest.raises(lorry.RunFenced) as refused:
        world.open_run(expected_run=old.number)
    assert refused.value.reason == "RUN_CONFLICT"


def test_the_new_run_goes_on(world, new, make_adapter):
    run, _ = new
    world.publish(run, 100, make_adapter(1100))
    for member in KINDS:
        world.prove(world.doors[member].ask("policy@100"), version=100, run=run.number)
