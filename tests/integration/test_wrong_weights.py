"""Nobody is served wrong weights: adapters of another model, adapters that an engine does not apply, engines of which
nobody knows what they serve."""

import http.server
import json
import shutil
import threading

import lorry
import pytest
from engine_core import NO_EFFECT, expected_logprobs
from testing import engines
from testing.engine_api import EngineApi
from testing.engines import KINDS, free_port
from testing.faults import Faults
from testing.fleet import Fleet
from testing.waiting import until
from testing.world import ADAPTER, World


@pytest.fixture
def world(bin_dir, tiny, tmp_path):
    pair = [engines.fake(kind, tiny / "model", log_dir=tmp_path) for kind in KINDS]
    with World(bin_dir, tmp_path, *pair) as made:
        made.admin.set_policy(ADAPTER, {"stage_deadline_ms": 4000})
        yield made


def test_an_adapter_of_another_model_reaches_no_engine(world, tiny, make_adapter):
    processes = [e.pid for e in world.engines.values()]
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        handle = run.publish(tiny / "adapters" / "wrongshape", version=2)
        handle.wait("stored")
        world.wait_refused(2, "BASE_MODEL_MISMATCH")
        with pytest.raises(lorry.SyncFailed, match="BASE_MODEL_MISMATCH"):
            handle.wait("serving", 30)
        assert world.latest() == (run.number, 1)
        for member, engine in world.engines.items():
            assert list(engine.state()["listed"]) == [n for n in engine.state()["listed"] if "-v2-" not in n]
            assert world.doors[member].ask(ADAPTER).version == 1
        world.publish(run, 3, make_adapter(3))
        world.wait_serves(3)
    assert [e.pid for e in world.engines.values()] == processes
    assert all(e.is_running() for e in world.engines.values()), "a wrong shape ends an SGLang at its first use"


def test_the_base_model_is_learnt_and_shown(world):
    for member in KINDS:
        base = world.member(member)["observed"]["base_model"]
        assert (base["architecture"], int(base["hidden_size"])) == ("llama", 128)


def test_an_adapter_that_is_applied_to_nothing_is_not_served_where_the_trainer_says_how_much_it_changes(world, make_adapter):
    with world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        for engine in world.engines.values():
            engine.set(serve_base=True)  # takes adapters, and applies none of their modules
        run.publish(make_adapter(2), version=2, relative_norm=0.05).wait("stored")
        world.wait_refused(2, "PROBE_SAME_AS_BASE")
        for member in KINDS:
            assert world.doors[member].ask(ADAPTER).version == 1
        assert world.latest() == (run.number, 1)


@pytest.mark.parametrize("relative_norm", [None, 0.0005], ids=["unknown", "too small to be seen"])
def test_what_cannot_be_proved_is_served_and_said_to_be_unproven(world, make_adapter, relative_norm):
    with world.open_run() as run:
        for engine in world.engines.values():
            engine.set(serve_base=True)
        run.publish(make_adapter(1), version=1, relative_norm=relative_norm).wait("serving", 60)
        for member in KINDS:
            assert world.told(member, 1) == "LOADED UNPROVEN"
        for engine in world.engines.values():
            engine.set(serve_base=False)
        world.publish(run, 2, make_adapter(2))
        for member in KINDS:
            assert world.told(member, 2) == "LOADED"


REFERENCE_PROMPTS = [[1, 40, 90, 40, 130], [7, 9, 11]]


def reference_of(folder):
    """What a trainer of these weights publishes with them, where engines are fakes."""
    said, base = ([expected_logprobs(f, p) for p in REFERENCE_PROMPTS] for f in (folder, None))
    return lorry.Reference(REFERENCE_PROMPTS, said, base)


def gaps(world, number):
    """{member: the mean gap in nats} of the engines that have it loaded."""
    told = {m: world.reported(m, number) for m in KINDS}
    return {m: r["gap"].get("mean_ppm", 0) / 1e6 for m, r in told.items() if "gap" in r}


def test_an_engine_that_computes_something_else_than_was_trained_is_refused(world, make_adapter):
    good, other = make_adapter(1), make_adapter(2)
    with world.open_run() as run:
        run.publish(good, version=1, reference=reference_of(good)).wait("serving", 60)
        assert {m: world.told(m, 1) for m in KINDS} == dict.fromkeys(KINDS, "LOADED")
        assert set(gaps(world, 1)) == set(KINDS) and max(gaps(world, 1).values()) < 1e-5
        for member in KINDS:
            assert world.metric(member, "lorry_proxy_reference_gap", adapter=ADAPTER, over="max") < 1e-5
        run.publish(make_adapter(3), version=2, reference=reference_of(other)).wait("stored")
        world.wait_refused(2, "PROBE_GAP")
        assert world.latest() == (run.number, 1)
        for member in KINDS:
            assert world.doors[member].ask(ADAPTER).version == 1
        world.admin.set_policy(ADAPTER, {"stage_deadline_ms": 4000, "probe_gap": 0})
        run.publish(make_adapter(4), version=3, reference=reference_of(other)).wait("serving", 60)
        assert min(gaps(world, 3).values()) > 0.1, "it is measured all the same"


def test_a_reference_of_tokens_that_the_model_has_not_reaches_no_engine(world, make_adapter):
    beyond = lorry.Reference([[1, 10_000_000]], [[-1.0]])
    with world.open_run() as run:
        run.publish(make_adapter(1), version=1, reference=beyond).wait("stored")
        world.wait_refused(1, "BASE_MODEL_MISMATCH")


@pytest.fixture
def on_cpu(bin_dir, tiny, tmp_path):
    """(world, faults): a vLLM on a CPU with one slot in its batch."""
    faults = Faults(tmp_path, "vllm")
    engine = engines.fake("vllm", tiny / "model", args=["--device", "cpu", "--max-loras", "1"], log_dir=tmp_path,
                          switches=faults.switches("vllm"))
    with World(bin_dir, tmp_path, engine) as made:
        made.admin.set_policy(ADAPTER, {"stage_deadline_ms": 4000, "no_adapter": "NO_ADAPTER_MODE_BASE",
                                         "probe": "PROBE_MODE_DIFFERS"})
        yield made, faults


def test_a_base_model_that_answers_as_an_adapter_is_compared_with_nothing(on_cpu, make_adapter):
    world, faults = on_cpu
    engine = EngineApi(world.engines["vllm"])
    with world.open_run() as run:
        run.publish(make_adapter(1), version=1).wait("serving", 60)
        name = next(iter(engine.listed()))
        engine.engine.set(token_delay_s=0.05)
        beside = engine.stream(name, tokens=10_000)
        beside.wait_for(1)
        assert engine.generate(None).text == engine.generate(name).text, "as the real one answers"
        run.publish(make_adapter(2), version=2).wait("serving", 60)
        assert world.told("vllm", 2) == "LOADED"
        faults.mark(make_adapter(3), NO_EFFECT)
        run.publish(make_adapter(3), version=3).wait("stored")
        world.wait_refused(3, "PROBE_SAME_AS_BASE")
        refused = world.doors["vllm"].ask("@base")
        assert (refused.status, refused.reason) == (400, "BASE_UNSUPPORTED")
        assert not beside.ended
        beside.leave()


def test_an_engine_of_another_model_serves_what_fits_it(bin_dir, tiny, make_adapter, tmp_path):
    """One store, two base models: the description belongs to the engine."""
    narrow = tmp_path / "narrow"
    shutil.copytree(tiny / "model", narrow)
    config = json.loads((narrow / "config.json").read_text())
    config.update(hidden_size=96, intermediate_size=192, head_dim=24)
    (narrow / "config.json").write_text(json.dumps(config))
    pair = [engines.fake("sglang", tiny / "model", log_dir=tmp_path), engines.fake("vllm", narrow, log_dir=tmp_path)]
    with World(bin_dir, tmp_path, *pair) as world, world.open_run() as run:
        world.admin.set_policy(ADAPTER, {"stage_deadline_ms": 4000})
        handle = run.publish(make_adapter(1), version=1)
        handle.wait("stored")
        world.published[handle.digest] = run.number, 1, make_adapter(1)
        until(lambda: world.serves("sglang", 1), "the engine of its model serves it")
        world.wait_refused(1, "BASE_MODEL_MISMATCH", "vllm")
        assert world.doors["vllm"].ask(ADAPTER).status != 200


@pytest.fixture
def secret(tiny, tmp_path):
    """A running SGLang whose model's config.json nobody can read any more."""
    shutil.copytree(tiny / "model", tmp_path / "secret")
    with engines.fake("sglang", tmp_path / "secret", log_dir=tmp_path) as engine:
        (tmp_path / "secret" / "config.json").unlink()
        yield engine


def test_an_engine_of_an_unknown_model_serves_nothing(bin_dir, secret, make_adapter, tmp_path):
    with World(bin_dir, tmp_path, secret, wait_ready=False) as world, world.open_run() as run:
        run.publish(make_adapter(1), version=1).wait("stored")
        until(lambda: "BASE_MODEL_UNKNOWN" in str(world.member("sglang").get("detail")), "the member says what it lacks")
        member = world.member("sglang")
        assert member["state"] == "JOINING"
        assert "--base-model-config" in member["detail"] and "--base-model-unchecked" in member["detail"]
        assert secret.state()["listed"] == {}
        assert world.doors["sglang"].ask(ADAPTER).status != 200


@pytest.mark.parametrize("flag", ["base-model-unchecked", "base-model-config"])
def test_an_operator_says_what_an_unknown_model_is(bin_dir, secret, tiny, make_adapter, tmp_path, flag):
    value = tiny / "model" if flag == "base-model-config" else "true"
    with World(bin_dir, tmp_path, secret, proxy_flags={flag: value}) as world, world.open_run() as run:
        world.publish(run, 1, make_adapter(1))
        assert world.doors["sglang"].ask(ADAPTER).version == 1
        world.publish(run, 2, make_adapter(2))


def test_a_dead_port_and_what_is_no_engine_are_told_apart(bin_dir, tmp_path):
    pages = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    addresses = {"dead": f"http://127.0.0.1:{free_port()}", "page": f"http://127.0.0.1:{pages.server_port}"}
    try:
        with Fleet(bin_dir, tmp_path, addresses) as fleet, lorry.Admin(**fleet.addresses()) as admin:

            def detail(member):
                return next((m.get("detail", "") for m in admin.status().get("members", []) if m["member"] == member), "")

            until(lambda: detail("dead").startswith("ENGINE_UNREACHABLE"), "nobody listens there")
            until(lambda: detail("page").startswith("ENGINE_UNKNOWN"), "no engine answers there")
            assert "--engine" in detail("page")
    finally:
        pages.shutdown()
        pages.server_close()
