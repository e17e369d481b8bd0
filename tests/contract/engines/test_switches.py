"""What only the fakes can be told to do: the failures that tests of the proxy need on demand."""

import pytest
from engine_core import expected_tokens, text_of
from testing import engines
from testing.engine_api import EngineApi
from testing.engines import CALL_DEADLINE_S
from testing.faults import DIE_AT_LOAD, DIE_AT_USE, HANG_AT_LOAD, Faults
from testing.waiting import Background, until

pytestmark = pytest.mark.fake_only


@pytest.fixture(params=engines.KINDS)
def own(request, tmp_path):
    """An engine of the case's own, to be changed and killed."""
    with engines.fake(request.param, log_dir=tmp_path) as engine:
        yield EngineApi(engine)


def test_tokens_tell_which_bytes_answered(own, adapters, fresh):
    name = fresh()
    own.load(name, adapters / "v2")
    assert own.generate(name).text == text_of(
        expected_tokens(adapters / "v2", "the quick brown", 5)
    )
    assert own.generate(None).text == text_of(expected_tokens(None, "the quick brown", 5))
    own.engine.set(serve_base=True)
    assert own.generate(name).text == own.generate(None).text


def test_a_restart_forgets_adapters_and_changes_the_boot_marker(own, adapters, fresh):
    before = own.boot_marker()
    own.load(fresh(), adapters / "v1")
    own.engine.restart(kill=True)
    assert own.listed() == {}
    assert own.boot_marker() != before


def test_a_load_whose_caller_left_succeeds_all_the_same(own, adapters, fresh):
    name = fresh()
    own.engine.set(hold_loads=True)
    with pytest.raises(OSError):
        own.load(name, adapters / "v1", timeout_s=0.2)
    assert name not in own.listed()
    own.engine.set(hold_loads=False)
    assert "already" in own.load(name, adapters / "v1").message
    assert own.listed()[name] == str(adapters / "v1")


def test_a_refused_load_and_a_vanished_adapter(own, adapters, fresh):
    name = fresh()
    own.engine.set(load_error="no space left on device")
    assert "no space left" in own.load(name, adapters / "v1").message
    own.engine.set(load_error="")
    own.load(name, adapters / "v1")
    own.engine.set(vanish=name)
    assert name not in own.listed()


def test_leaked_references_make_an_unload_hang(tmp_path, adapters, fresh):
    args = ["--max-running-requests", "1"]
    switches = {"leak_on_queue_abort": True, "token_delay_s": 0.02}
    with engines.fake("sglang", log_dir=tmp_path, args=args, switches=switches) as engine:
        api, name = EngineApi(engine), fresh()
        api.load(name, adapters / "v1")
        running = api.stream(None, 2_000)  # until it is aborted
        running.wait_for(1)
        queued = api.stream(name, 5)
        until(lambda: engine.state()["waiting"] > 0, "it waits behind the other")
        api.engine.call("POST", "/abort_request", {"abort_all": True})
        queued.wait_end()
        with pytest.raises(OSError):
            api.unload(name, timeout_s=0.5)


def test_told_to_die_it_dies(own):
    with pytest.raises(OSError):
        own.engine.call("POST", "/_fake/die")
    own.engine.wait_dead()


def test_a_vllm_that_dies_of_prompt_logprobs_bears_them_alone(tmp_path):
    switches = {"die_of_prompt_logprobs": True, "token_delay_s": 0.02}
    asks = {"model": "base", "prompt": "the quick brown", "max_tokens": 2, "prompt_logprobs": 0}
    with engines.fake("vllm", log_dir=tmp_path, switches=switches) as engine:
        assert engine.call("POST", "/v1/completions", asks)[0] == 200
        beside = EngineApi(engine).stream(None, 2_000)
        beside.wait_for(1)
        with pytest.raises(OSError):
            engine.call("POST", "/v1/completions", asks)
        engine.wait_dead()


@pytest.mark.parametrize("flag", ["--no-enable-lora"])
def test_without_lora_a_load_says_so(tmp_path, adapters, flag):
    for kind in engines.KINDS:
        with engines.fake(kind, log_dir=tmp_path, args=[flag]) as engine:
            assert "LoRA is not enabled" in EngineApi(engine).load("x", adapters / "v1").message


def test_without_runtime_updates_vllm_has_no_such_route(tmp_path, adapters):
    environment = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0"}
    with engines.fake("vllm", log_dir=tmp_path, env=environment) as engine:
        reply = EngineApi(engine).load("x", adapters / "v1")
        assert (reply.status, reply.body) == (404, {"detail": "Not Found"})


@pytest.fixture(params=engines.KINDS)
def marked(request, tmp_path):
    """(engine, faults): one that is started again whenever it ends, and weights that it does not bear."""
    faults = Faults(tmp_path, "it")
    switches = faults.switches("it")
    with engines.fake(request.param, log_dir=tmp_path, switches=switches, respawn=True) as engine:
        yield EngineApi(engine), faults


def test_weights_that_kill_at_load_or_at_first_use_kill_every_boot(marked, adapters, fresh):
    api, faults = marked
    faults.mark(adapters / "v1", DIE_AT_LOAD)
    faults.mark(adapters / "v2", DIE_AT_USE)
    for boot in range(1, 3):
        with pytest.raises(OSError):
            api.load(fresh(), adapters / "v1")
        assert faults.deaths(adapters / "v1") == boot
        until(lambda boot=boot: len(faults.events("boot")) == 2 * boot, "it is started again")
        name = fresh()
        assert api.load(name, adapters / "v2").status == 200
        with pytest.raises(OSError):
            api.generate(name)
        assert faults.deaths(adapters / "v2") == boot
        until(lambda boot=boot: len(faults.events("boot")) == 2 * boot + 1, "it is started again")
    assert faults.deaths() == 4


def test_refused_weights_are_refused_in_the_words_given_until_they_are_good(marked, adapters, fresh):
    api, faults = marked
    faults.mark(adapters / "v1", "lora_A of layer 0 is no matrix")
    reply = api.load(fresh(), adapters / "v1")
    assert reply.status != 200
    assert "lora_A of layer 0 is no matrix" in reply.message
    faults.mark(adapters / "v1", "")
    assert api.load(fresh(), adapters / "v1").status == 200


def test_weights_that_hang_at_load_never_end_it(marked, adapters, fresh):
    api, faults = marked
    faults.mark(adapters / "v1", HANG_AT_LOAD)
    name = fresh()
    with pytest.raises(OSError):
        api.load(name, adapters / "v1", timeout_s=0.5)
    assert name not in api.listed()


def test_the_journal_tells_of_unloads_under_live_requests_and_of_names_loaded_again(tmp_path, adapters, fresh):
    faults = Faults(tmp_path, "it")
    switches = faults.switches("it") | {"token_delay_s": 0.01}
    with engines.fake("sglang", log_dir=tmp_path, switches=switches) as engine:
        api, name = EngineApi(engine), fresh()
        api.load(name, adapters / "v1")
        running = api.stream(name, 2_000)
        running.wait_for(1)
        unload = Background(api.unload, name)
        until(lambda: faults.events("unload"), "the unload has begun while it runs")
        engine.set(token_delay_s=0.0)
        running.wait_end()
        assert unload.returned_within(CALL_DEADLINE_S)
        api.generate(name)
        assert [(e["event"], e.get("live")) for e in faults.events()] == [
            ("boot", None), ("loaded", None), ("unload", 1), ("reloaded", None), ("loaded", None)
        ]


def test_vllms_workers_drop_what_is_idle_and_never_what_runs(tmp_path, adapters, fresh):
    """A name that was loaded anew is another adapter to them than the one that is driven out."""
    faults = Faults(tmp_path, "it")
    switches = faults.switches("it") | {"token_delay_s": 0.01}
    with engines.fake("vllm", args=["--max-cpu-loras", "2"], log_dir=tmp_path, switches=switches) as engine:
        api, anew, other, more = EngineApi(engine), fresh(), fresh(), fresh()
        for _ in range(2):
            api.load(anew, adapters / "v1")
            api.unload(anew)
        api.load(anew, adapters / "v1")
        running = api.stream(anew, 20_000)
        for name in (other, more):
            api.load(name, adapters / "v2")
            seen = len(running.events)
            running.wait_for(seen + 2)
            api.unload(name)
        api.load(other, adapters / "v2")
        assert not running.ended
        assert not faults.events("evicted")
        running.wait_for(len(running.events) + 2)
        api.load(more, adapters / "v2")
        assert [(e["name"], e["live"]) for e in faults.events("evicted")] == [(other, 0)]
        assert not faults.events("reloaded")
