"""Frameworks that know nothing of Lorry release the memory of engines at their doors, take it again, and give them other
weights: nobody is served meanwhile, nor by what an engine has lost."""

import concurrent.futures
import http.client
import json
import time

import pytest
from testing import frameworks
from testing.crowd import Crowd
from testing.engines import http_json
from testing.frameworks import CACHE, WEIGHTS
from testing.pauses import Running
from testing.waiting import until
from testing.workers import Workers, at_once
from testing.world import ADAPTER, restart

MEMBERS = ("sglang-1", "vllm-1")


class Framework(frameworks.Framework):
    """Calls a door as colocated trainers call engines."""

    def __init__(self, world, member):
        super().__init__(world, member)
        self.engine, self._door = world.engines[member], world.fleet.door(member)

    def call(self, method, path, body=None):
        return http_json(method, self._door + path, body, 60.0)

    def update(self):
        if self.kind == "sglang":
            return self.call("POST", "/update_weights_from_disk", {"model_path": "/m"})
        return self.call("POST", "/update_weights", {"update_info": {}})

    def state(self):
        return self.engine.state()

    def standing(self):
        return self.world.member(self.member).get("state")

    def counted(self):
        """Requests, as the engine tells them."""
        told = http_json("GET", self.engine.url + "/v1/loads", None, 10.0)[1]["loads"]
        return sum(row["num_running_reqs"] + row["num_waiting_reqs"] for row in told)

    def detail(self):
        return self.world.member(self.member)["observed"].get("health_detail", "")

    def boot(self):
        return self.world.member(self.member)["observed"]["boot_id"]

    def ask(self, name=ADAPTER, **more):
        return super().ask(name, **more)

    def is_refused(self):
        answer = self.ask()
        assert (answer.status, answer.reason) == (503, "ENGINE_ASLEEP"), answer


def store(world, run, number, folder):
    """Publishes it without waiting for engines."""
    handle = run.publish(folder, version=number)
    handle.wait("stored")
    world.published[handle.digest] = run.number, number, folder


@pytest.fixture(params=["kept", "gone", "base"])
def world(bin_dir, tiny, tmp_path, request):
    made = Crowd(bin_dir, tmp_path, tiny / "model", *MEMBERS, switches={"after_sleep": request.param})
    for proxy in made.fleet.proxies.values():
        proxy.environment["LORRY_FAULT"] = f"@{proxy.folder / 'fault'}"
    with made:
        made.admin.set_policy(ADAPTER, {"stage_deadline_ms": 20_000})
        yield made


@pytest.fixture
def serving(world, make_adapter):
    """A run whose version 1 is served."""
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.wait_serves(1)
        yield run


def test_an_engine_sleeps_once_what_runs_has_ended_and_serves_again_what_is_wanted(world, serving, make_adapter):
    boots = {member: Framework(world, member).boot() for member in MEMBERS}

    def sleeps(member):
        framework, replies = Framework(world, member), []
        with Running(world, member) as running:
            with Workers(lambda: replies.append(framework.release()), join_s=60.0):
                until(lambda: framework.ask().reason == "ENGINE_ASLEEP", "nobody else is let in")
                assert framework.state()["released"] == []
                running.let_go()
        assert replies[0][0] == 200, replies
        assert running.answers[0].status == 200
        assert framework.state()["releases"] == [0]
        until(lambda: framework.standing() == "ASLEEP", "it is said")
        framework.is_refused()

    at_once(sleeps, MEMBERS)
    store(world, serving, 2, make_adapter(2))

    def wakes(member):
        framework = Framework(world, member)
        assert framework.resume(WEIGHTS)[0] == 200
        framework.is_refused()
        assert framework.standing() == "ASLEEP"
        assert framework.resume(CACHE)[0] == 200
        assert framework.ask().reason != "ENGINE_ASLEEP", "who was told so asks at once"
        assert framework.state()["released"] == []

    at_once(wakes, MEMBERS)
    world.wait_serves(2)
    for member in MEMBERS:
        kept = world.doors[member]
        until(lambda: kept.ask(f"{ADAPTER}@1").status != 409, "the older version, loaded after the one to serve, is back")
        world.prove(kept.ask(f"{ADAPTER}@1"), version=1)
        assert Framework(world, member).boot() == boots[member], "nothing was asked of it that it would end of"


@pytest.mark.parametrize("world", ["base"], indirect=True)
def test_a_proxy_that_is_killed_knows_that_its_engine_sleeps(world, serving):
    def killed(member):
        framework = Framework(world, member)
        boot = framework.boot()
        assert framework.release()[0] == 200
        restart(world.fleet.proxies[member])
        until(lambda: framework.standing() == "ASLEEP", "it is known again")
        framework.is_refused()
        assert framework.resume(WEIGHTS, CACHE)[0] == 200
        world.wait_serves(1, [member])
        assert framework.boot() == boot

    at_once(killed, MEMBERS)


@pytest.mark.parametrize("world", ["kept"], indirect=True)
def test_sglang_is_not_asked_for_what_it_would_end_of(world, serving):
    framework = Framework(world, "sglang-1")
    boot = framework.boot()
    for _ in range(2):
        status, body = framework.resume(WEIGHTS)
        assert status == 409 and "is not released" in json.dumps(body), body
        assert framework.release()[0] == 200
        status, body = framework.release()
        assert status == 409 and "is released already" in json.dumps(body), body
        assert framework.resume(WEIGHTS, CACHE)[0] == 200
    world.wait_serves(1)
    assert framework.boot() == boot


@pytest.mark.parametrize("world", ["kept"], indirect=True)
def test_requests_that_a_pause_has_frozen_keep_their_memory(world, serving):
    framework = Framework(world, "sglang-1")
    with Running(world, "sglang-1") as running:
        assert framework.call("POST", "/pause_generation", {"mode": "in_place"})[0] == 200
        status, body = framework.release()
        assert status == 409 and "continue it first" in json.dumps(body), body
        assert framework.call("POST", "/continue_generation", {})[0] == 200
        running.let_go()
    assert running.answers[0].status == 200


@pytest.mark.parametrize("world", ["kept"], indirect=True)
def test_weights_change_once_what_runs_has_ended_and_what_the_engine_says_is_its_answer(world, serving):
    def updated(member):
        framework, replies = Framework(world, member), []
        with Running(world, member) as running:
            with Workers(lambda: replies.append(framework.update()), join_s=60.0):
                until(lambda: framework.ask().reason == "ENGINE_UPDATING", "nobody else is let in")
                assert framework.state()["updates"] == []
                running.let_go()
        assert replies[0][0] == 200, replies
        assert "pdate" in json.dumps(replies[0][1]), "as the engine said it"
        assert framework.state()["updates"] == [0]
        world.wait_serves(1, [member])
        # Of the whole cycle, nothing ends the engine.
        assert framework.release()[0] == 200
        assert framework.resume(WEIGHTS)[0] == 200
        assert framework.update()[0] == 200
        assert framework.resume(CACHE)[0] == 200
        world.wait_serves(1, [member])

    at_once(updated, MEMBERS)
    refused = Framework(world, "sglang-1").call("POST", "/update_weights_from_disk", {"model_path": "missing"})
    assert refused == (400, {"success": False, "message": "no such model", "num_paused_requests": 0})
    assert Framework(world, "vllm-1").call("POST", "/update_weights", {})[0] == 400
    world.wait_serves(1)


@pytest.mark.parametrize("world", ["kept"], indirect=True)
def test_calls_that_need_nothing_of_lorry_reach_the_engine(world, serving):
    sglang, vllm = Framework(world, "sglang-1"), Framework(world, "vllm-1")
    assert sglang.call("POST", "/init_weights_update_group", {"master_address": "h"})[1]["success"] is True
    assert sglang.call("POST", "/update_weight_version", {"new_version": "7"})[1]["new_version"] == "7"
    assert vllm.call("POST", "/init_weight_transfer_engine", {"init_info": {}})[0] == 200
    assert vllm.call("POST", "/collective_rpc", {"method": "reload_weights"})[1] == {"results": [None]}
    assert vllm.call("GET", "/is_sleeping")[1] == {"is_sleeping": False}
    world.wait_serves(1)


@pytest.mark.parametrize("world", ["kept"], indirect=True)
def test_a_label_ends_requests_of_others_only_where_that_is_said(world, serving):
    """SGLang ends all of them by default."""
    sglang = Framework(world, "sglang-1")
    with Running(world, "sglang-1", stream=True) as running:
        until(lambda: sglang.state()["running"] > 0, "it runs")
        for body in ({"new_version": "7"}, {"new_version": "8", "abort_all_requests": False}):
            assert sglang.call("POST", "/update_weight_version", body)[1]["new_version"] == body["new_version"]
        assert sglang.state()["labels"] == {"7": False, "8": False} and not running.answers
        assert sglang.call("POST", "/update_weight_version", {"new_version": "9", "abort_all_requests": True})[0] == 200
        until(lambda: running.answers, "it ends")
    assert sglang.call("POST", "/update_weight_version", ["7"])[0] == 400


def test_what_cannot_be_meant_is_refused(bin_dir, tiny, tmp_path):
    with Crowd(bin_dir, tmp_path, tiny / "model", *MEMBERS) as world:
        assert Framework(world, "vllm-1").call("POST", "/sleep?level=0")[0] == 400
        assert Framework(world, "sglang-1").resume("bogus")[0] == 400


@pytest.mark.parametrize("world", ["kept"], indirect=True)
def test_what_an_earlier_proxy_let_in_ends_before_memory_is_released(world, serving):
    """Of the base model, so that no adapter tells of it."""
    framework, replies = Framework(world, "sglang-1"), []
    boot = framework.boot()
    world.admin.set_policy(ADAPTER, {"no_adapter": "NO_ADAPTER_MODE_BASE"})
    until(lambda: world.doors["sglang-1"].ask("@base").status == 200, "policy reaches the door")
    with Running(world, "sglang-1", "@base") as running:
        until(framework.counted, "the engine shows it")
        restart(world.fleet.proxies["sglang-1"])
        until(lambda: framework.ask().reason != "ENGINE_UNREACHABLE", "it has met its engine")
        with Workers(lambda: replies.append(framework.release()), join_s=60.0):
            until(lambda: framework.ask().reason == "ENGINE_ASLEEP", "nobody else is let in")
            began = time.monotonic()
            until(lambda: replies or time.monotonic() - began > 8.0, "longer than an adapter's requests are waited for")
            assert not replies and framework.counted() > 0
            running.let_go()
    assert replies[0][0] == 200, replies
    assert framework.state()["releases"] == [0] and framework.boot() == boot


@pytest.mark.parametrize("world", ["kept"], indirect=True)
@pytest.mark.parametrize("point", ["proxy.pass.before_call", "proxy.pass.answered"])
@pytest.mark.parametrize("member", MEMBERS)
def test_a_proxy_killed_while_memory_is_released_takes_it_for_released(world, serving, member, point):
    """vLLM says that it is awake, where it never heard of the call; SGLang says nothing, and ends of the wrong call."""
    framework = Framework(world, member)
    boot = framework.boot()
    killed_at(world, framework, point, framework.release)
    until(lambda: framework.ask().reason == "ENGINE_ASLEEP", "nobody is served by what may be gone")
    if framework.kind == "sglang":
        is_in_doubt(framework, boot)
        world.engines[member].restart(kill=True)
    elif point == "proxy.pass.answered":
        assert framework.resume(WEIGHTS, CACHE)[0] == 200
    world.wait_serves(1, [member])


@pytest.mark.parametrize("world", ["kept"], indirect=True)
@pytest.mark.parametrize("point", ["proxy.pass.before_call", "proxy.pass.answered"])
@pytest.mark.parametrize("member", MEMBERS)
def test_a_proxy_killed_while_memory_is_taken_again_does_not_guess(world, serving, member, point):
    framework = Framework(world, member)
    boot = framework.boot()
    assert framework.release()[0] == 200
    killed_at(world, framework, point, lambda: framework.resume(WEIGHTS, CACHE))
    if framework.kind == "sglang":
        is_in_doubt(framework, boot)
        world.engines[member].restart(kill=True)
    else:
        assert framework.resume(WEIGHTS, CACHE)[0] == 200
    world.wait_serves(1, [member])


@pytest.mark.parametrize("world", ["kept"], indirect=True)
def test_a_proxy_that_is_stopped_waits_for_what_becomes_of_a_release(world, serving):
    framework, proxy, replies = Framework(world, "sglang-1"), world.fleet.proxies["sglang-1"], []
    boot = framework.boot()
    framework.engine.set(hold_releases=True)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with Workers(lambda: replies.append(framework.release()), join_s=60.0):
            until(lambda: framework.state()["asked"], "the engine has the call")
            stopped = pool.submit(proxy.stop)
            until(lambda: replies, "its caller is told that the door drains")
        began = time.monotonic()
        until(lambda: stopped.done() or time.monotonic() - began > 1.0, "longer than the rest of a stop takes")
        framework.engine.set(hold_releases=False)
        assert stopped.result() == 0
    proxy.start().wait_ready()
    until(lambda: framework.ask().reason == "ENGINE_ASLEEP", "it is known")
    status, body = framework.resume(WEIGHTS, CACHE)
    assert status == 200, body
    world.wait_serves(1, ["sglang-1"])
    assert framework.boot() == boot


def killed_at(world, framework, point, call):
    """The proxy dies at the point in the middle of the call, is started again, and has met its engine."""
    proxy = world.fleet.proxies[framework.member]
    (proxy.folder / "fault").write_text(f"{point}\n")
    with pytest.raises((OSError, http.client.HTTPException)):
        call()
    proxy.wait_dead()
    proxy.start().wait_ready()
    until(lambda: framework.ask().reason != "ENGINE_UNREACHABLE", "it has met its engine")


def is_in_doubt(framework, boot):
    """No call that SGLang could end of reaches it, and it is said what helps."""
    for call in (lambda: framework.resume(WEIGHTS), framework.release, framework.update):
        status, body = call()
        assert status == 409 and "start the engine again" in json.dumps(body), body
    until(lambda: "must be started again" in framework.detail(), "status says it")
    assert framework.boot() == boot, "it has not ended"
