"""Engines that need more than a load: one that is asked whether a version has an effect, one asleep, one wedged."""

import lorry
import pytest
from testing import engines
from testing.doors import PROMPT
from testing.engine_api import EngineApi
from testing.engines import KINDS
from testing.fleet import Service
from testing.waiting import until
from testing.world import ADAPTER, World

# An unload's deadline (15 s), the drain before it, and two looks.
WEDGED_WITHIN_S = 45.0


@pytest.fixture
def states(bin_dir, tiny, tmp_path):
    pair = [engines.fake(kind, tiny / "model", log_dir=tmp_path) for kind in KINDS]
    with World(bin_dir, tmp_path, *pair) as made:
        made.admin.set_policy(ADAPTER, {"stage_deadline_ms": 4000})
        yield made


def test_a_version_without_effect_is_refused_where_policy_asks_for_a_difference(states, make_adapter):
    world = states
    world.admin.set_policy(ADAPTER, {"stage_deadline_ms": 4000, "probe": "PROBE_MODE_DIFFERS"})
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        for engine in world.engines.values():
            engine.set(serve_base=True)  # takes adapters, and applies none of their modules
        handle = run.publish(make_adapter(2), version=2)
        handle.wait("stored")
        with pytest.raises(lorry.SyncFailed) as failed:
            handle.wait("serving", 60)
        assert failed.value.reason == "REFUSED", failed.value
        assert "PROBE_SAME_AS_BASE" in str(failed.value), failed.value
        assert world.latest() == (run.number, 1)
        for member in KINDS:
            assert (run.number, 2) not in world.loaded(member)
            assert world.doors[member].ask(ADAPTER).version == 1
            assert world.doors[member].ask(f"{ADAPTER}@2").reason == "NOT_LOADED"
        for engine in world.engines.values():
            engine.set(serve_base=False)
        # With its effect it is served, once an operator asks for it again.
        world.published[handle.digest] = run.number, 2, make_adapter(2)
        world.admin.retry(ADAPTER, (run.number, 2))
        world.wait_serves(2)


def test_images_go_with_the_proxy_of_an_engine_that_has_ended(states, make_adapter):
    world = states
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
    world.engines["vllm"].stop()
    until(lambda: world.member("vllm").get("state") != "READY", "its end is noticed")
    for proxy in world.fleet.proxies.values():
        proxy.stop()
    assert not (world.fleet.image_root / "vllm").exists()
    assert list((world.fleet.image_root / "sglang").rglob("*.safetensors")), "an engine that goes on may read it again"


def test_a_version_that_answers_like_the_base_is_served_where_policy_asks_for_a_token(states, make_adapter):
    world = states
    world.admin.set_policy(ADAPTER, {"stage_deadline_ms": 4000, "probe": "PROBE_MODE_TOKEN"})
    with world.open_run() as run:
        for engine in world.engines.values():
            engine.set(serve_base=True)
        run.publish(make_adapter(1), version=1).wait("serving", 60)
        assert world.latest() == (run.number, 1)


def test_an_engine_asleep_takes_no_part_and_comes_back(states, make_adapter):
    world, vllm = states, states.engines["vllm"]
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        assert vllm.call("POST", "/sleep?level=1")[0] == 200
        until(lambda: world.member("vllm").get("state") == "ASLEEP", "the sleep is seen")
        asleep = world.doors["vllm"].ask(ADAPTER)
        assert (asleep.status, asleep.reason) == (503, "ENGINE_ASLEEP")
        handle = world.publish(run, 2, make_adapter(2))
        assert world.latest() == (run.number, 2)
        world.wait_serves(2, ["sglang"])
        assert (run.number, 2) not in world.loaded("vllm")
        assert vllm.call("POST", "/wake_up")[0] == 200
        until(lambda: world.member("vllm").get("state") == "READY", "it is awake")
        handle.wait("serving")
        world.wait_serves(2)


def test_a_vllm_that_dies_of_prompt_logprobs_is_not_asked_for_them(bin_dir, tiny, tmp_path, make_adapter):
    vllm = engines.fake("vllm", tiny / "model", args=["--device", "cpu"], log_dir=tmp_path,
                        switches={"die_of_prompt_logprobs": True})
    with World(bin_dir, tmp_path, vllm) as world, world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        vllm.set(token_delay_s=0.05)
        beside = EngineApi(vllm).stream(None, tokens=2000)
        beside.wait_for(1)
        asks = {"model": ADAPTER, "prompt": PROMPT, "max_tokens": 2}
        url = world.fleet.door("vllm") + "/v1/completions"
        status, reply = engines.http_json("POST", url, asks | {"prompt_logprobs": 0})
        assert (status, reply["error"]["type"]) == (400, "PROMPT_LOGPROBS_UNSUPPORTED")
        assert engines.http_json("POST", url, asks)[0] == 200
        world.publish(run, 2, make_adapter(2))  # nor does a probe ask for them
        assert not beside.ended
        beside.leave()


@pytest.fixture
def wedged(bin_dir, tiny, tmp_path):
    """(world, lines of what --on-wedged ran): a SGLang that never ends an unload."""
    out = tmp_path / "ran"
    command = f"echo \"$LORRY_MEMBER $LORRY_BOOT_ID $LORRY_ENGINE_URL\" >> {out}; echo asked for a restart"
    sglang = engines.fake("sglang", tiny / "model", log_dir=tmp_path, switches={"unload_delay_s": 600})
    with World(bin_dir, tmp_path, sglang, proxy_flags={"on-wedged": f"exec:{command}"}) as world:
        world.admin.set_policy(ADAPTER, {"keep": {"versions": 1}, "max_staleness": 0})
        yield world, lambda: out.read_text().splitlines() if out.exists() else []


def test_the_operators_command_runs_once_for_each_wedged_boot(wedged, make_adapter):
    world, ran = wedged
    proxy: Service = world.fleet.proxies["sglang"]
    engine = world.engines["sglang"]
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        world.publish(run, 2, make_adapter(2))
        until(lambda: world.member("sglang")["state"] == "WEDGED", "the unload hangs", WEDGED_WITHIN_S)
        boot = world.member("sglang")["observed"]["boot_id"]
        until(ran, "the command runs")
        until(lambda: "\nasked for a restart\n" in proxy.log_path.read_text(), "its output is in the log")
        world.wait_serves(2)

        proxy.kill()
        proxy.start().wait_ready()
        until(lambda: world.member("sglang").get("state") == "WEDGED", "the journal remembers it")
        engine.restart(kill=True)
        until(lambda: world.member("sglang").get("state") == "READY", "a new boot is not wedged")
        assert ran() == [f"sglang {boot} {engine.url}"]
        world.wait_serves(2)

        world.publish(run, 3, make_adapter(3))
        until(lambda: len(ran()) == 2, "the next boot is wedged, too", WEDGED_WITHIN_S)
        assert ran()[1].split()[1] == world.member("sglang")["observed"]["boot_id"] != boot


def test_an_engine_left_behind_refuses_what_policy_calls_too_old(bin_dir, tiny, tmp_path, make_adapter):
    sglang = engines.fake("sglang", tiny / "model", log_dir=tmp_path, switches={"unload_delay_s": 600})
    vllm = engines.fake("vllm", tiny / "model", log_dir=tmp_path)
    with World(bin_dir, tmp_path, sglang, vllm) as world, world.open_run() as run:
        world.admin.set_policy(ADAPTER, {"max_staleness": 1, "stage_deadline_ms": 4000})
        for version in (1, 2, 3):  # for the third, the first is unloaded
            world.publish(run, version, make_adapter(version))
        until(lambda: world.member("sglang")["state"] == "WEDGED", "the unload hangs", WEDGED_WITHIN_S)
        door = world.doors["sglang"]
        world.publish(run, 4, make_adapter(4))
        until(lambda: door.ask(ADAPTER).headers.get("x-lorry-lag") == "1", "it knows that it is one behind")
        assert door.ask(ADAPTER).version == 3
        world.publish(run, 5, make_adapter(5))
        until(lambda: door.ask(ADAPTER).reason == "STALE_VERSION", "two behind are too many")
        assert door.ask(f"{ADAPTER}@3").version == 3, "whoever names a version gets it"
        world.wait_serves(5, ["vllm"])
        sglang.restart(kill=True)
        world.wait_serves(5)
