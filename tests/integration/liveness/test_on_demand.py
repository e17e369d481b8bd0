"""More adapters than the engines have slots: each is served by its own version, in turn and all at once, while others are published."""

import collections
import concurrent.futures
import contextlib

import pytest
from testing.crowd import Crowd
from testing.waiting import DEADLINE_S, until
from testing.world import CONVERGE_S, Traffic

ADAPTERS = [f"adapter{i}" for i in range(6)]
BARRIER = ADAPTERS[-1]  # its versions change at all doors together
SLOTS = 3
ENGINES = ("sglang-1", "vllm-1")
ARGS = {
    "sglang": ["--max-loras-per-batch", "2", "--max-loaded-loras", str(SLOTS)],
    "vllm": ["--max-loras", "2", "--max-cpu-loras", str(SLOTS)],
}
# Five loads one after the other, each with a probe and behind an unload, on a machine that compiles beside it.
WAIT_MS = 45_000
POLICY = {"residency": "on_demand", "demand_wait_ms": WAIT_MS}
ROUNDS = 4
CLIENTS = 3  # of each adapter at each door
VERSIONS = 2
TURNS = 3


class Fleet:
    """A run of each adapter, whose versions all have bytes of their own."""

    def __init__(self, world: Crowd, make_adapter, stack: contextlib.ExitStack) -> None:
        self.world, self._make = world, make_adapter
        self.runs = {}
        for adapter in ADAPTERS:
            world.admin.create(adapter, {**POLICY, "mode": "barrier"} if adapter == BARRIER else POLICY)
            self.runs[adapter] = stack.enter_context(world.open_run(adapter))

    def publish(self, adapter: str, number: int):
        """Until every engine serves it."""
        folder = self._make(100 * (1 + ADAPTERS.index(adapter)) + number)
        handle = self.world.publish(self.runs[adapter], number, folder)
        return handle

    def ask(self, adapter: str, member: str, number: int | None = None) -> None:
        """It is answered by the adapter's own bytes."""
        answer = self.world.doors[member].ask(adapter)
        self.world.prove(answer, number)
        name = answer.headers["x-lorry-adapter"] if "x-lorry-adapter" in answer.headers else adapter
        assert name == adapter

    def events(self, kind: str, member: str) -> int:
        return len(self.world.faults.events(kind, member))

    def check_slots(self, member: str) -> None:
        """Nobody was put out in use, and the engine never had to choose who leaves. vLLM's workers keep what was unloaded until
        something newer drives it out, and that may drive out something idle, which they read again."""
        faults = self.world.faults
        assert all(e["live"] == 0 for kind in ("unload", "evicted") for e in faults.events(kind, member))
        assert self.world.engines[member].kind == "vllm" or not faults.events("evicted", member)
        assert len(self.world.engines[member].state()["listed"]) <= SLOTS

    def digests_of(self, adapter: str) -> set[str]:
        return {v.digest for v in self.world.admin.versions(adapter)}

    def fewest_turns(self, member: str) -> int:
        turns = collections.Counter(self.turns(member))
        return min(turns[adapter] for adapter in ADAPTERS)

    def turns(self, member: str) -> list[str]:
        """The adapters whose versions were loaded again, in their order; not the first time, which is the sync's."""
        known: set[str] = set()
        turns = []
        for event in self.world.faults.events("loaded", member):
            if event["name"] in known:
                turns.append(event["name"].rpartition("-v")[0])
            known.add(event["name"])
        return turns


@pytest.fixture
def fleet(crowd, make_adapter):
    world = crowd(*ENGINES, args=ARGS)
    with contextlib.ExitStack() as stack:
        fleet = Fleet(world, make_adapter, stack)
        with concurrent.futures.ThreadPoolExecutor(len(ADAPTERS)) as pool:
            list(pool.map(lambda adapter: fleet.publish(adapter, 1), ADAPTERS))
        yield fleet


def test_more_adapters_than_slots_take_turns(fleet):
    world = fleet.world
    for member in ENGINES:
        assert world.member(member)["slot_need"]["needed"] == 2
        assert fleet.events("loaded", member) == len(ADAPTERS), "each version was loaded and proven once"
        for _ in range(2):
            for adapter in ADAPTERS:
                fleet.ask(adapter, member, 1)
        assert fleet.events("loaded", member) >= 2 * len(ADAPTERS), "they came back, one by one"
        fleet.check_slots(member)
        states = [world.told(member, 1, adapter) for adapter in ADAPTERS]
        assert states.count("FETCHED") >= len(ADAPTERS) - SLOTS, "the others' files stayed"
        assert world.metric(member, "lorry_proxy_demand_loads_total") >= len(ADAPTERS)
        assert world.metric(member, "lorry_proxy_demand_evictions_total") >= len(ADAPTERS)


def test_all_at_once_while_versions_are_published(fleet):
    world = fleet.world
    asks = [(adapter, member) for _ in range(ROUNDS) for adapter in ADAPTERS for member in ENGINES]
    with concurrent.futures.ThreadPoolExecutor(len(ADAPTERS) * len(ENGINES) + len(ADAPTERS)) as pool:
        published = [pool.submit(fleet.publish, adapter, 2) for adapter in ADAPTERS]
        answered = [pool.submit(world.doors[member].ask, adapter) for adapter, member in asks]
        for future in published + answered:
            future.result()
    for (adapter, member), future in zip(asks, answered):
        answer = future.result()
        world.prove(answer)
        assert answer.digest in fleet.digests_of(adapter), f"{member} answered {adapter} by another's version"
    for adapter in ADAPTERS:
        assert world.latest(adapter)[1] == 2
        for member in ENGINES:
            fleet.ask(adapter, member, 2)
    for member in ENGINES:
        fleet.check_slots(member)


def test_each_has_its_turn_under_constant_traffic_while_versions_are_published(fleet):
    world = fleet.world
    with contextlib.ExitStack() as stack:
        crowds = {a: stack.enter_context(Traffic(world, CLIENTS, name=a)) for a in ADAPTERS}
        for number in range(2, 2 + VERSIONS):
            for adapter in ADAPTERS:
                fleet.publish(adapter, number)
        for member in ENGINES:
            until(lambda m=member: fleet.fewest_turns(m) >= TURNS, f"each has had {TURNS} turns at {member}", DEADLINE_S)
    for adapter, crowd in crowds.items():
        crowd.check()
        digests = fleet.digests_of(adapter)
        assert all(answer.digest in digests for _, answer in crowd.answers), f"{adapter} was answered by another's version"
        assert 1 + VERSIONS in {answer.version for _, answer in crowd.answers}
    for member in ENGINES:
        fleet.check_slots(member)


def test_requests_that_never_cease_do_not_keep_the_others_waiting(fleet):
    world = fleet.world
    member = "vllm-1"
    world.engines[member].set(token_delay_s=0.02)
    busy, others = ADAPTERS[:SLOTS], ADAPTERS[SLOTS:]
    done = []

    def keep_asking(adapter: str) -> None:
        while not done:
            world.prove(world.doors[member].ask(adapter, tokens=20), 1)

    with concurrent.futures.ThreadPoolExecutor(2 * SLOTS) as pool:
        running = [pool.submit(keep_asking, adapter) for adapter in busy * 2]
        try:
            for adapter in others:
                fleet.ask(adapter, member, 1)
        finally:
            done.append(True)
        for future in running:
            future.result()


def test_a_request_whose_wait_is_over_is_told_who_holds_the_slots(fleet):
    world = fleet.world
    member = "vllm-1"
    last = ADAPTERS[-1]
    world.admin.set_policy(last, {**POLICY, "demand_wait_ms": 300})
    for adapter in ADAPTERS[:-1]:
        fleet.ask(adapter, member, 1)
    until(lambda: world.told(member, 1, last) == "FETCHED", "it is away", CONVERGE_S)
    world.engines[member].set(hold_loads=True)
    answer = world.doors[member].ask(last)
    assert (answer.status, answer.reason) == (503, "NOT_RESIDENT"), answer.message
    assert "the engine is loading it now" in answer.message or "adapter slots are held by" in answer.message
    assert int(answer.headers["retry-after"]) > 0
    world.engines[member].set(hold_loads=False)
    until(lambda: world.serves(member, 1, last), "it came back", CONVERGE_S)

