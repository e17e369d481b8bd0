"""The orchestrator and the proxies killed with SIGKILL at every fault point that they have, in the middle of a sync.

The points are read from the sources: one that no sync passes any more fails its test. The store's are killed at in
test_crashes.py and, alone, in store/.
"""

import pathlib
import re
import signal

import pytest
from testing import engines
from testing.engine_api import EngineApi
from testing.engines import KINDS, ROOT
from testing.fleet import Service
from testing.waiting import until
from testing.world import ADAPTER, Steps, Traffic, World, restart

# A sync passes a point within a second; what unloads an old version waits for quiet first.
PASSED_WITHIN_S = 30.0


def points(folder: str) -> list[str]:
    sources = (ROOT / "services" / folder).rglob("*.cc")
    return sorted(p for s in sources for p in re.findall(r'LORRY_FAULT_POINT\("([^"]+)"\)', s.read_text()))


ORCHESTRATOR = points("sync_orchestrator")
# No sync of this file pauses an engine, and no framework calls one: test_quiesce_faults.py, test_framework_memory.py.
PROXY = [p for p in points("engine_proxy") if ".pause." not in p and ".pass." not in p]


@pytest.fixture(scope="module")
def world(bin_dir, tiny, tmp_path_factory):
    """Its services die at the point that their file names (lib/runtime/fault_point.h)."""
    folder = tmp_path_factory.mktemp("fleet")
    world = World(bin_dir, folder, *[engines.fake(kind, tiny / "model", log_dir=folder) for kind in KINDS])
    for service in world.fleet.services():
        service.environment["LORRY_FAULT"] = f"@{service.folder / 'fault'}"
    with world:
        yield world


@pytest.fixture(scope="module")
def steps(world, make_adapter):
    world.admin.set_policy(ADAPTER, {"stage_deadline_ms": 10_000})
    with world.open_run() as run:
        steps = Steps(world, run, make_adapter)
        steps.next()
        yield steps


def arm(service: Service, point: str) -> None:
    fresh = service.folder / "fault.new"
    fresh.write_text(point + "\n")
    fresh.rename(service.folder / "fault")


def kill_at(point: str, service: Service, world: World, steps: Steps, victims: tuple[str, ...], provoke=lambda: None) -> None:
    """Publishes; the service dies at the point and is started again; the version is decided and served all the same.

    The doors of all but the victims' answer every request.
    """
    with Traffic(world) as traffic:
        until(lambda: traffic.good() > 3, "traffic flows")
        handle = steps.begin()
        arm(service, point)
        provoke()
        assert service.wait_dead(PASSED_WITHIN_S) == -signal.SIGKILL
        service.start().wait_ready()
        steps.finish(handle)
    traffic.check(*victims)


def test_there_are_points():
    assert len(ORCHESTRATOR) >= 10 and len(PROXY) >= 18
    assert len(set(ORCHESTRATOR + PROXY)) == len(ORCHESTRATOR + PROXY)


@pytest.mark.parametrize("point", ORCHESTRATOR)
def test_the_orchestrator_killed_at(world, steps, point):
    attaches = ".attach." in point
    kill_at(point, world.fleet.orchestrator, world, steps, ("vllm",) if attaches else (),
            lambda: restart(world.fleet.proxies["vllm"]) if attaches else None)


@pytest.mark.parametrize("point, member", [(p, KINDS[i % len(KINDS)]) for i, p in enumerate(PROXY)])
def test_a_proxy_killed_at(world, steps, point, member):
    kill_at(point, world.fleet.proxies[member], world, steps, (member,))


def directories(world: World, member: str) -> set[str]:
    """Names of the adapter directories on the member's shelf."""
    return {p.name for p in (world.fleet.image_root / member / "versions").glob("*/*")}


@pytest.mark.parametrize("member", KINDS)
def test_nothing_is_left_behind(world, steps, member):
    """Last: the two versions that policy keeps, on the engine and on disk; and every number is stored once."""
    api = EngineApi(world.engines[member])
    until(lambda: len(api.listed()) == 2, f"{member} lists two versions")
    assert world.loaded(member) == {(1, steps.number - 1), (1, steps.number)}
    until(lambda: directories(world, member) == set(api.listed()), f"{member} has no other directory")
    assert [v.number for v in world.admin.versions(ADAPTER)] == list(range(steps.number, 0, -1))
    assert not list(pathlib.Path(world.fleet.folder).glob("*/fault*"))
