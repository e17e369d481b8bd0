"""Frameworks that know nothing of Lorry pause engines at their doors, and every engine goes on."""

import contextlib
import json

import pytest
from testing.crowd import Crowd
from testing.engines import http_json
from testing.pauses import PAUSES, Running, paused, policy
from testing.waiting import until
from testing.workers import at_once
from testing.world import ADAPTER, restart

MEMBERS = tuple(f"{kind}-1" for kind in PAUSES)
DEADLINE_S = 8.0  # of the proxies with a short one
PAUSED_BODY = {
    "sglang": {"message": "Generation paused successfully.", "status": "ok"},
    "vllm": {"status": "paused"},
}
GOES_ON_BODY = {
    "sglang": {"message": "Generation continued successfully.", "status": "ok"},
    "vllm": {"status": "resumed"},
}


class Framework:
    """Calls a door as frameworks call engines."""

    def __init__(self, world, member):
        self.kind = world.engines[member].kind
        self.member = member
        self.door = world.fleet.door(member)
        self._world = world

    def call(self, method, path, body=None):
        return http_json(method, self.door + path, body, 60.0)

    def pause(self, mode):
        if self.kind == "sglang":
            return self.call("POST", "/pause_generation", {"mode": mode})
        return self.call("POST", f"/pause?mode={mode}")

    def go_on(self):
        return self.call("POST", "/continue_generation", {}) if self.kind == "sglang" else self.call("POST", "/resume")

    def flush(self):
        return self.call("POST", "/flush_cache" if self.kind == "sglang" else "/reset_prefix_cache")

    @property
    def holds(self):
        return self.member in paused(self._world)

    def detail(self):
        return self._world.member(self.member).get("observed", {}).get("health_detail", "")


def store(world, run, number, folder):
    """Publishes it without waiting for engines."""
    handle = run.publish(folder, version=number)
    handle.wait("stored")
    world.published[handle.digest] = run.number, number, folder


@pytest.fixture(scope="module")
def world(bin_dir, tiny, tmp_path_factory):
    with Crowd(bin_dir, tmp_path_factory.mktemp("pair"), tiny / "model", *MEMBERS) as made:
        yield made


@pytest.fixture
def serving(world, make_adapter):
    """A run whose version 1 is served."""
    world.admin.set_policy(ADAPTER, {"stage_deadline_ms": 20_000}, replace=True)
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        yield run


def test_each_pause_is_answered_in_the_engines_words_and_holds_until_it_is_continued(world, serving):
    def each(member):
        framework = Framework(world, member)
        for mode in PAUSES[framework.kind]:
            assert framework.pause(mode) == (200, PAUSED_BODY[framework.kind]), mode
            assert framework.holds, mode
            assert world.engines[member].state()["pauses"][-1] == mode
            if framework.kind == "vllm":
                assert framework.call("GET", "/is_paused") == (200, {"is_paused": True})
            assert framework.go_on() == (200, GOES_ON_BODY[framework.kind]), mode
            assert not framework.holds, mode
            world.prove(world.doors[member].ask(ADAPTER), version=1)
        assert framework.go_on() == (200, GOES_ON_BODY[framework.kind]), "one that is not needed"

    at_once(each, MEMBERS)


def test_what_lorry_loads_waits_for_it_and_status_says_why(world, serving, make_adapter):
    frameworks = [Framework(world, member) for member in MEMBERS]
    for framework in frameworks:
        framework.pause("abort")
    store(world, serving, 2, make_adapter(2))
    for framework in frameworks:
        until(lambda f=framework: "a framework paused the engine" in f.detail(), "status says why")
        # Its order: pause, flush, continue, with loads in between that wait for nothing of Lorry's.
        assert framework.flush()[0] == 200
    assert all(f.holds for f in frameworks), "nothing of Lorry's ends it"
    for framework in frameworks:
        assert framework.go_on()[0] == 200
    world.wait_serves(2)
    assert all(f.detail() == "" for f in frameworks)


def test_a_row_that_comes_to_rest_waits_for_its_turn(world, serving, make_adapter):
    world.admin.set_policy(ADAPTER, policy("rolling", "abort"), replace=True)
    frameworks = [Framework(world, member) for member in MEMBERS]
    before = {f.member: world.engines[f.member].state()["pauses"] for f in frameworks}
    with contextlib.ExitStack() as stack:
        for framework in frameworks:
            stack.callback(framework.go_on)
            assert framework.pause("abort")[0] == 200
        store(world, serving, 2, make_adapter(2))
        for framework in frameworks:
            assert framework.holds
    world.wait_serves(2)
    until(lambda: not paused(world), "every engine goes on")
    for framework in frameworks:
        after = world.engines[framework.member].state()["pauses"]
        assert after == [*before[framework.member], "abort", "abort"], "the framework's, then Lorry's"


def test_sglang_is_not_asked_for_an_abort_that_would_never_end(world, serving):
    framework = Framework(world, "sglang-1")
    with Running(world, "sglang-1") as running:
        assert framework.pause("in_place")[0] == 200
        status, body = framework.pause("abort")
        assert status == 409 and "continue it first" in json.dumps(body), body
        assert framework.go_on()[0] == 200
        running.let_go()
    assert running.answers[0].status == 200


def test_areals_names_pause_a_vllm(world, serving):
    framework = Framework(world, "vllm-1")
    assert framework.call("POST", "/areal_pause_generation", {})[1]["success"] is True
    assert framework.holds
    assert world.engines["vllm-1"].state()["pauses"][-1] == "abort"
    assert framework.call("POST", "/areal_continue_generation", {})[1]["success"] is True
    assert not framework.holds


def test_what_cannot_be_meant_is_refused_as_engines_do(world, serving):
    for member in MEMBERS:
        status, body = Framework(world, member).pause("bogus")
        assert status == 400, body
        assert not Framework(world, member).holds


def test_sglang_aborts_all_that_runs(world, serving):
    with Running(world, "sglang-1", stream=True) as running:
        until(lambda: world.engines["sglang-1"].state()["running"] > 0, "it runs")
        assert Framework(world, "sglang-1").call("POST", "/abort_request", {"abort_all": True})[0] == 200
        until(lambda: running.answers, "it ends")
    assert running.answers[0].status == 200


@pytest.fixture
def hasty(bin_dir, tiny, tmp_path):
    flags = {"framework_pause_deadline_ms": int(DEADLINE_S * 1000)}
    with Crowd(bin_dir, tmp_path, tiny / "model", *MEMBERS, proxy_flags=flags) as made:
        yield made


def test_the_proxy_ends_one_that_its_framework_forgets_and_says_so(hasty, make_adapter):
    with hasty.open_run() as run:
        hasty.publish(run, 1, make_adapter(1))
        hasty.wait_serves(1)

        def forgotten(member):
            framework = Framework(hasty, member)
            assert framework.pause("abort")[0] == 200
            until(lambda: not framework.holds, "the engine goes on", 4 * DEADLINE_S)
            until(lambda: "ended a framework's pause" in framework.detail(), "status says so")
            hasty.prove(hasty.doors[member].ask(ADAPTER), version=1)
            assert "lorry_proxy_framework_pauses_overdue_total 1" in hasty.fleet.proxies[member].metrics()

        at_once(forgotten, MEMBERS)


@pytest.mark.parametrize("kill", [True, False])
def test_a_proxy_that_ends_keeps_it_until_its_framework_continues(world, serving, kill):
    def ends(member):
        framework, proxy = Framework(world, member), world.fleet.proxies[member]
        assert framework.pause("abort")[0] == 200
        restart(proxy, kill=kill)
        assert kill or "the engine stays paused for the framework" in proxy.log_path.read_text()
        assert framework.holds
        until(lambda: "a framework paused the engine" in framework.detail(), "it is known again")
        assert framework.holds
        # A door that has just begun answers 503 until it has found its engine.
        until(lambda: framework.go_on()[0] == 200, "it is continued")
        assert not framework.holds

    at_once(ends, MEMBERS)
    world.wait_serves(1)


def test_a_door_that_takes_no_such_calls_names_the_flag(bin_dir, tiny, tmp_path, make_adapter):
    with Crowd(bin_dir, tmp_path, tiny / "model", *MEMBERS, proxy_flags={"framework_calls": "off"}) as world:
        for member in MEMBERS:
            framework = Framework(world, member)
            for reply in (framework.pause("abort"), framework.go_on(), framework.flush()):
                assert reply[0] == 403 and "--framework-calls=on" in json.dumps(reply[1]), reply
            assert not framework.holds
