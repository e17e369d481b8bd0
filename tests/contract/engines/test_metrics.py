"""What Lorry reads off vLLM's metrics, which need no dev mode."""

import re

import pytest

pytestmark = pytest.mark.kind("vllm")


def metrics(api):
    return api.engine.call("GET", "/metrics")[1]


def awake(api):
    return re.findall(r'^vllm:engine_sleep_state{.*sleep_state="awake"} (.*)$', metrics(api), re.M)


def test_they_tell_that_lora_is_on_and_of_how_many_a_batch_is(api, adapters, fresh):
    assert "# TYPE vllm:num_requests_running gauge" in metrics(api)
    assert "# TYPE vllm:lora_requests_info gauge" in metrics(api)
    name = fresh()
    api.load(name, adapters / "v1")
    assert api.generate(name).status == 200
    assert re.search(r'^vllm:lora_requests_info{.*max_lora="4"', metrics(api), re.M)


def test_they_tell_sleep_apart_from_a_pause(api):
    assert awake(api) == ["1.0"]
    api.pause("abort")
    assert awake(api) == ["1.0"]
    assert api.engine.call("GET", "/is_sleeping")[1] == {"is_sleeping": True}
    api.resume()
    # Level 0 releases nothing, and so works on every machine.
    assert api.engine.call("POST", "/sleep?level=0")[0] == 200
    assert awake(api) == ["0.0"]
    assert api.engine.call("POST", "/wake_up?tags=scheduling")[0] == 200
    assert awake(api) == ["1.0"]
