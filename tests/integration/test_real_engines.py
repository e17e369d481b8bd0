"""Real SGLang and real vLLM: what they answer equals torch + peft for the announced version, also after a crash."""

import json
import os

import mistralrs
import numpy as np
import pytest
from safetensors.numpy import load_file
from testing.doors import DoorClient
from testing.engines import KINDS
from testing.reference import TOLERANCE, Reference
from testing.waiting import until
from testing.world import ADAPTER, Traffic, World
from transformers import AutoTokenizer

pytestmark = pytest.mark.real
OTHER = "other"  # an adapter for bad versions, so that the good one's go on
VERSIONS = (1, 2, 3)
TOKENS = 8
PROMPTS = [[1, 40 + 7 * i, 90 + 5 * i, 130 + 3 * i] for i in range(3)]
# A token of a real engine on a busy machine; a load and its probe take seconds there.
SERVING_S = 180.0


@pytest.fixture(scope="module")
def reference(tiny):
    return Reference(tiny / "model", [tiny / "adapters" / f"v{n}" for n in VERSIONS])


@pytest.fixture(scope="module")
def world(bin_dir, tiny, reference, engine_pair, tmp_path_factory):
    with World(bin_dir, tmp_path_factory.mktemp("fleet"), *engine_pair.values()) as made:
        made.judge = reference.judge
        made.admin.set_policy(ADAPTER, {"keep": {"versions": 3}, "max_staleness": 2})
        with made.open_run() as run:
            for number in VERSIONS:
                made.publish(run, number, tiny / "adapters" / f"v{number}", timeout=SERVING_S)
        yield made


@pytest.mark.parametrize("member", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_answers_as_torch_and_peft_do(world, member, version):
    for prompt in PROMPTS:
        for stream in (False, True):
            answer = world.doors[member].ask(f"{ADAPTER}@{version}", tokens=TOKENS, prompt=prompt, stream=stream)
            world.prove(answer, version=version)


@pytest.mark.parametrize("member", KINDS)
def test_versions_differ_from_the_base_and_from_each_other(world, reference, member):
    engine = world.engines[member]
    base = DoorClient(member, engine.url).ask(None, tokens=TOKENS)
    assert reference.gap(base, None) <= TOLERANCE
    answers = [world.doors[member].ask(f"{ADAPTER}@{n}", tokens=TOKENS) for n in VERSIONS]
    said = {tuple(base.tokens), *(tuple(a.tokens) for a in answers)}
    assert len(said) == 1 + len(VERSIONS), "random adapters of this size say different things"


def test_both_engines_say_the_same(world):
    for name in (ADAPTER, f"{ADAPTER}@1"):
        said = {tuple(world.doors[m].ask(name, tokens=TOKENS).tokens) for m in KINDS}
        assert len(said) == 1, said


class MistralRs:
    """mistral.rs in this process: a third implementation, which shares no code with torch or the engines."""

    def __init__(self, tiny):
        os.environ["MISTRALRS_CPU_KV_F32"] = "1"
        self._module = mistralrs
        which = mistralrs.Which.Lora(
            model_id=str(tiny / "model"), arch=mistralrs.Architecture.Llama, dtype=mistralrs.ModelDType.F32
        )
        self._runner = mistralrs.Runner(which=which, token_source="none")
        self._tokenizer = AutoTokenizer.from_pretrained(tiny / "model")

    def load(self, name, folder):
        self._runner.load_lora_adapter(name, str(folder))

    def text(self, prompt, adapter):
        request = self._module.CompletionRequest(
            prompt=prompt,
            model="default",
            max_tokens=TOKENS,
            temperature=0.0,
            top_k=1,
            ignore_eos=True,
            adapter=adapter,
        )
        return self._runner.send_completion_request(request).choices[0].text

    def ids(self, prompt):
        return self._tokenizer(prompt).input_ids

    def decoded(self, tokens):
        return self._tokenizer.decode(tokens, skip_special_tokens=True)


def test_mistral_rs_says_the_same(world, tiny):
    """An independent check of what a version means, greedy text by greedy text."""
    prompt, mistral = "the quick brown", MistralRs(tiny)
    for number in VERSIONS:
        mistral.load(f"v{number}", tiny / "adapters" / f"v{number}")
        text = mistral.text(prompt, f"v{number}")
        assert text != mistral.text(prompt, None)
        for member in KINDS:
            answer = world.doors[member].ask(f"{ADAPTER}@{number}", tokens=TOKENS, prompt=mistral.ids(prompt))
            assert mistral.decoded(answer.tokens) == text, (member, number)


@pytest.mark.parametrize("member", KINDS)
def test_the_base_model_is_refused(world, member):
    answer = world.doors[member].ask(None)
    assert (answer.status, answer.reason) == (400, "NO_ADAPTER")


def test_wrong_weights_reach_nobody(world, tiny):
    """An adapter of another model, one that changes nothing though its trainer says that it does, and one of which nobody says so."""
    pids = {m: world.engines[m].pid for m in KINDS}
    tensors = load_file(tiny / "adapters" / "v1" / "adapter_model.safetensors")
    config = json.loads((tiny / "adapters" / "v1" / "adapter_config.json").read_text())
    without_effect = {k: v * np.float32(1e-12) if "lora_B" in k else v for k, v in tensors.items()}
    with world.open_run(OTHER) as run:
        run.publish(tiny / "adapters" / "wrongshape", version=1).wait("stored", SERVING_S)
        world.wait_refused(1, "BASE_MODEL_MISMATCH", *KINDS, adapter=OTHER, deadline_s=SERVING_S)
        run.publish(without_effect, config=config, version=2, relative_norm=0.1).wait("stored", SERVING_S)
        world.wait_refused(2, "PROBE_SAME_AS_BASE", *KINDS, adapter=OTHER, deadline_s=SERVING_S)
        run.publish(without_effect, config=config, version=3).wait("serving", SERVING_S)
        run.publish(tiny / "adapters" / "v1", version=4, relative_norm=0.1).wait("serving", SERVING_S)
    for member in KINDS:
        assert world.told(member, 3, OTHER) == "LOADED UNPROVEN"
        assert world.told(member, 4, OTHER) == "LOADED"
        assert world.doors[member].ask(f"{OTHER}@1").reason == "NOT_LOADED"
    assert {m: world.engines[m].pid for m in KINDS} == pids
    assert all(world.engines[m].is_running() for m in KINDS)


def test_under_traffic_versions_are_compared_with_the_base_model_itself(world, tiny):
    """A vLLM on a CPU answers for its base model with the adapter in the last of its four slots while another request for an
    adapter runs: as many versions as slots are loaded, so that each slot's turn comes."""
    tensors = load_file(tiny / "adapters" / "v1" / "adapter_model.safetensors")
    config = json.loads((tiny / "adapters" / "v1" / "adapter_config.json").read_text())

    def scaled(factor):
        return {k: v * np.float32(factor) if "lora_B" in k else v for k, v in tensors.items()}

    with Traffic(world, workers=2) as traffic, world.open_run(OTHER) as run:
        for number in range(11, 16):
            for member in KINDS:
                seen = traffic.good(member)
                until(lambda m=member, n=seen: traffic.good(m) > n, f"traffic flows at {member}", SERVING_S)
            run.publish(scaled(number), config=config, version=number, relative_norm=0.1).wait("serving", SERVING_S)
            assert {m: world.told(m, number, OTHER) for m in KINDS} == dict.fromkeys(KINDS, "LOADED")
        run.publish(scaled(1e-12), config=config, version=16, relative_norm=0.1).wait("stored", SERVING_S)
        world.wait_refused(16, "PROBE_SAME_AS_BASE", *KINDS, adapter=OTHER, deadline_s=SERVING_S)
    traffic.check()
    answer = world.doors["vllm"].ask("@base")
    assert (answer.status, answer.reason) == (400, "NO_ADAPTER")
    world.admin.set_policy(ADAPTER, {"keep": {"versions": 3}, "max_staleness": 2, "no_adapter": "NO_ADAPTER_MODE_BASE"})
    until(lambda: world.doors["vllm"].ask("@base").reason == "BASE_UNSUPPORTED", "policy reaches the door", SERVING_S)
    assert world.doors["sglang"].ask("@base").status == 200


def test_a_vllm_killed_under_traffic_and_a_publish_is_brought_to_desired(world, tiny):
    """Last: what it publishes, in a run of its own, is v1's bytes as another version."""
    engine, number = world.engines["vllm"], VERSIONS[-1] + 1
    with Traffic(world, workers=1, pause_s=0.2) as traffic, world.open_run() as run:
        for member in KINDS:
            until(lambda m=member: traffic.good(m) > 1, f"traffic flows at {member}", SERVING_S)
        engine.kill()
        handle = run.publish(tiny / "adapters" / "v1", version=number)
        handle.wait("stored", SERVING_S)
        world.published[handle.digest] = run.number, number, tiny / "adapters" / "v1"
        until(lambda: world.member("vllm").get("state") != "READY", "the death is noticed", SERVING_S)
        world.wait_serves(number, ["sglang"], SERVING_S)
        assert world.latest() == (run.number, number)
        assert world.doors["vllm"].ask(ADAPTER).status in (502, 503)
        engine.start().wait_ready()
        until(lambda: world.doors["vllm"].ask(ADAPTER).status == 200, "vllm serves again", SERVING_S)
        back_at = len(traffic.answers)
        handle.wait("serving", SERVING_S)
        until(lambda: any(m == "vllm" and a.status == 200 for m, a in traffic.answers[back_at:]), "traffic flows again", SERVING_S)
    traffic.check("vllm")
    late = [a for m, a in traffic.answers[back_at:] if m == "vllm" and a.status == 200]
    assert {(a.run, a.version) for a in late} == {(run.number, number)}
    for prompt in PROMPTS:
        world.prove(world.doors["vllm"].ask(ADAPTER, tokens=TOKENS, prompt=prompt), version=number)
