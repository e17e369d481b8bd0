"""A request that reaches SGLang just as an aborting pause begins: SGLang holds it, neither aborted nor refused, until it goes on."""

import pytest
from testing import engines
from testing.engines import http_json
from testing.frameworks import Framework, ok, write
from testing.waiting import until
from testing.workers import Workers
from testing.world import World


@pytest.fixture
def world(bin_dir, tiny, tmp_path, request):
    engine = engines.fake("sglang", tiny / "model", log_dir=tmp_path, name="sglang")
    with World(bin_dir, tmp_path, engine, proxy_flags={"bindings-root": tmp_path, **getattr(request, "param", {})}) as made:
        # Until then a name that does not exist may be one that the door has not heard of yet.
        until(lambda: made.doors["sglang"].ask("nobody").reason != "CATCHING_UP", "the door knows what is served")
        yield made


def test_it_is_answered_after_the_pause_by_the_bytes_that_it_was_admitted_for(world, make_adapter, tmp_path):
    framework, folder, answers = Framework(world, "sglang"), tmp_path / "policy", []
    first, second = make_adapter(8801), make_adapter(8802)
    write(first, folder)
    ok(framework.load("lora_v1", folder))
    engine = world.engines["sglang"]
    # The pause has begun at the engine, and the door has not heard of it yet.
    assert http_json("POST", engine.url + "/pause_generation", {})[0] == 200
    with Workers(lambda: answers.append(framework.ask("lora_v1")), join_s=60.0):
        until(lambda: engine.state()["held"] == 1, "it is admitted, and held there")
        ok(framework.pause())
        write(second, folder)
        ok(framework.load("lora_v2", folder))
        ok(framework.unload("lora_v1"))
        assert engine.state()["held"] == 1 and not answers, "the pause waits for nobody that it cannot abort, nor ends it"
        ok(framework.go_on())
    assert answers[0].status == 200, answers[0].body
    world.judge(answers[0], first)
    framework.answers_by("lora_v2", second)
    assert framework.ask("lora_v1").status == 404


@pytest.mark.parametrize("world", [{"framework-pause-deadline-ms": 2_000}], indirect=True)
def test_the_pauses_deadline_ends_it(world, make_adapter, tmp_path):
    framework, first, answers = Framework(world, "sglang"), make_adapter(8801), []
    write(first, tmp_path / "policy")
    ok(framework.load("lora_v1", tmp_path / "policy"))
    engine = world.engines["sglang"]
    assert http_json("POST", engine.url + "/pause_generation", {})[0] == 200
    with Workers(lambda: answers.append(framework.ask("lora_v1")), join_s=60.0):
        until(lambda: engine.state()["held"] == 1, "it is admitted, and held there")
        ok(framework.pause())  # and is gone
        until(lambda: answers, "the proxy has the engine go on")
    assert answers[0].status == 200, answers[0].body
    world.judge(answers[0], first)
