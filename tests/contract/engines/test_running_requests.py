"""What happens to requests that run while adapters leave and generation is paused."""

import contextlib

import pytest
from testing.engine_api import PAUSE_MODES
from testing.engines import CALL_DEADLINE_S
from testing.waiting import Background, until

# Long enough that a case's calls fall inside of it: about 4 s on a real engine, 1.6 s on a fake. A machine under load
# slows the calls and the tokens alike.
LONG = 600
# Of a case that looks at what runs behind a call.
ATTEMPTS = 5


@contextlib.contextmanager
def slowly(api):
    """A fake takes its time for tokens, as no machine is too slow for what is tried meanwhile; a real engine takes its own."""
    if api.engine.is_fake:
        api.engine.set(token_delay_s=0.1)
    try:
        yield
    finally:
        if api.engine.is_fake:
            api.engine.set(token_delay_s=0.002)


def test_streams_repeat_themselves_on_sglang_and_go_on_on_vllm(api):
    events = api.stream(None, tokens=6).wait_end()
    texts = [e["text"] for e in events] if api.kind == "sglang" else None
    if texts:
        assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:]))
        assert texts[-1] == api.generate(None, tokens=6).text
    else:
        joined = "".join(e["choices"][0]["text"] for e in events if e["choices"])
        assert joined == api.generate(None, tokens=6).text


def test_the_engine_counts_what_runs(api):
    """Not at once: SGLang publishes its counts every 15 steps and before it begins another, vLLM after its next step."""
    until(lambda: api.load_counts() == (0, 0), "nothing runs")
    with slowly(api):
        stream = api.stream(None, LONG)
        until(lambda: stream.ended or sum(api.load_counts()) == 1, "the request is counted")
        assert not stream.ended
    stream.wait_end()
    until(lambda: api.load_counts() == (0, 0), "nothing runs any more")


def test_the_engine_tells_that_it_works(api):
    """While it does: what it does for others tells a probe that waits behind them from one that stalls it."""
    with slowly(api):
        stream = api.stream(None, LONG)
        stream.wait_for(1)
        before = api.worked()
        until(lambda: stream.ended or api.worked() > before, "it tells that it has gone on")
        assert not stream.ended
    stream.wait_end()


def test_an_unload_under_a_running_request(api, adapters, fresh):
    """vLLM answers at once and the request goes on; SGLang answers when the request has ended."""
    name = fresh()
    api.load(name, adapters / "v1")
    with slowly(api):
        stream = api.stream(name, LONG)
        stream.wait_for(3)
        unload = Background(api.unload, name)
        if api.kind == "vllm":
            assert unload.returned_within(CALL_DEADLINE_S) and unload.result.status == 200
            assert not stream.ended
    if api.kind == "vllm":
        assert api.generate(name).status == 404
        events = stream.wait_end()
    else:
        events = stream.wait_end()
        assert unload.returned_within(CALL_DEADLINE_S) and unload.result.status == 200
    assert api.finish_reason(events) == "length"
    assert name not in api.listed()


@pytest.mark.kind("sglang")
def test_sglang_holds_every_load_behind_an_unload_that_waits(api, adapters, fresh):
    name, other = fresh(), fresh()
    api.load(name, adapters / "v1")
    stream = api.stream(name, LONG)
    stream.wait_for(3)
    api.pause("in_place")
    unload = Background(api.unload, name)
    assert not unload.returned_within(0.3)
    load = Background(api.load, other, adapters / "v2")
    assert not load.returned_within(0.5)
    api.resume()
    stream.wait_end()
    assert unload.returned_within(CALL_DEADLINE_S) and load.returned_within(CALL_DEADLINE_S)
    assert unload.result.status == 200 and load.result.status == 200


def modes_that(*effects):
    """(kind, mode) pairs by what they do to running requests."""
    table = {
        "abort": [("sglang", "abort"), ("vllm", "abort")],
        "freeze": [("sglang", "retract"), ("sglang", "in_place"), ("vllm", "keep")],
        "finish": [("vllm", "wait")],
    }
    return [pair for effect in effects for pair in table[effect]]


@pytest.mark.parametrize("mode", sorted({m for _, m in modes_that("abort", "freeze", "finish")}))
def test_new_requests_wait_during_a_pause_and_loading_works(api, adapters, fresh, mode):
    if mode not in PAUSE_MODES[api.kind]:
        pytest.skip(f"{api.kind} has no such mode")
    name = fresh()
    assert api.pause(mode).status == 200
    held = Background(api.generate, None)
    assert not held.returned_within(0.5)
    assert api.load(name, adapters / "v1").status == 200
    assert api.resume().status == 200
    assert held.returned_within(CALL_DEADLINE_S) and held.result.status == 200
    assert api.generate(name).status == 200


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place", "keep", "wait"])
def test_what_a_pause_does_to_a_running_request(api, mode):
    if mode not in PAUSE_MODES[api.kind]:
        pytest.skip(f"{api.kind} has no such mode")
    frozen = (api.kind, mode) in modes_that("freeze")
    for _ in range(ATTEMPTS):
        stream = api.stream(None, LONG)
        stream.wait_for(3)
        assert api.pause(mode).status == 200
        if not frozen:
            stream.wait_end()
        # On a busy machine its last token may be faster than the call.
        if mode == "wait" or not stream.ended or api.finish_reason(stream.events) == "abort":
            break
        assert api.resume().status == 200
    assert stream.ended != frozen
    assert api.resume().status == 200
    want = "abort" if mode == "abort" else "length"
    assert api.finish_reason(stream.wait_end()) == want


def test_an_unknown_pause_mode_is_refused(api):
    assert api.pause("no-such-mode").status == 400


def test_the_boot_marker_stays_within_a_life(api):
    assert api.boot_marker() == api.boot_marker()


@pytest.mark.kind("sglang")
def test_aborted_and_queued_requests_do_not_leak_references(api, adapters, fresh):
    """SGLang 0.5.23 gives references back where older releases did not. The proxy must not rely on it."""
    name = fresh()
    api.load(name, adapters / "v1")
    streams = [api.stream(name, 40, prompt=f"request {i}") for i in range(12)]
    streams[0].wait_for(2)
    api.engine.call("POST", "/abort_request", {"abort_all": True})
    for stream in streams:
        stream.wait_end()
    unload = Background(api.unload, name)
    assert unload.returned_within(CALL_DEADLINE_S) and unload.result.status == 200
