"""Real SGLang and real vLLM behind doors that frameworks load their own adapters at and pause: each sequence as it is documented,
each answer by the bytes that its name stood for, as torch + peft have it."""

from __future__ import annotations

import pytest
from testing.engines import KINDS
from testing.frameworks import Asking, Framework, areal, astraflow, miles, ok, weight_versions, write
from testing.reference import TOLERANCE, Reference
from testing.waiting import until
from testing.world import ADAPTER, World

pytestmark = pytest.mark.real
ROUNDS = 4
RESTART_EVERY = 2
KEEP = 2
TOKENS = 8
# A load and its probe on a machine that is busy.
SERVING_S = 180.0


@pytest.fixture(scope="module")
def folders(make_adapter):
    return [make_adapter(700 + n) for n in range(ROUNDS)]


@pytest.fixture(scope="module")
def reference(tiny, folders):
    return Reference(tiny / "model", folders)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Where frameworks write."""
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def world(bin_dir, reference, root, engine_pair, tmp_path_factory):
    with World(bin_dir, tmp_path_factory.mktemp("fleet"), *engine_pair.values(), proxy_flags={"bindings-root": root, "door-weight-versions": "true"}) as made:
        made.judge = reference.judge
        yield made


def run(framework, steps, reference):
    """The sequence, with a client that asks all the while and is aborted by pauses: what it got of an answer is compared, too."""

    def wrong(answer, folder):
        gap = reference.gap(answer, folder.name)
        return "" if gap <= TOLERANCE else f"off by {gap} from {folder.name}"

    with Asking(framework, workers=1, tokens=TOKENS, pause_s=0.2) as clients:
        for _ in steps:
            pass
    clients.check(wrong)
    assert clients.answers > 0
    assert framework.world.engines[framework.member].is_running()


def test_astraflow_on_sglang(world, reference, folders, root):
    framework = Framework(world, "sglang", TOKENS)
    run(framework, astraflow(framework, folders.__getitem__, root / "astraflow", ROUNDS, RESTART_EVERY), reference)
    for name, source in zip(("lora_v1", "lora_v2"), folders[RESTART_EVERY:], strict=True):
        framework.answers_by(name, source, stream=True)


def test_miles_from_tensors_on_sglang(world, folders):
    for _ in miles(Framework(world, "sglang", TOKENS), folders.__getitem__, None, ROUNDS):
        pass


@pytest.mark.parametrize("member", KINDS)
def test_areal(world, reference, folders, root, member):
    framework, at = Framework(world, member, TOKENS), root / f"areal-{member}"
    at.mkdir()
    run(framework, areal(framework, folders.__getitem__, at, ROUNDS, KEEP), reference)
    for version in range(ROUNDS - KEEP, ROUNDS):
        framework.answers_by(f"lora-gsm8k-v{version}", folders[version])
    assert framework.ask(f"lora-gsm8k-v{ROUNDS - KEEP - 1}").status == 404


def test_miles_reads_a_version_in_the_body(world, folders):
    with world.open_run() as run:
        world.publish(run, 7, folders[0], timeout=SERVING_S)
    for stream in (False, True):
        assert weight_versions(world.doors["sglang"].ask(ADAPTER, stream=stream)) == {"7"}


def test_in_place_on_vllm(world, reference, folders, root):
    """One name, one directory that is written anew, while clients ask by the name."""
    framework, at = Framework(world, "vllm", TOKENS), root / "in_place"

    def load_in_place():
        for step, source in enumerate(folders[:3]):
            write(source, at)
            ok(framework.load("policy_lora", at, load_inplace=step > 0))
            framework.current = "policy_lora"
            framework.answers_by("policy_lora", source)
            yield step

    run(framework, load_in_place(), reference)


def test_a_vllm_that_slept_serves_again(world, reference, folders, root):
    """As colocated trainers do: asleep, the weights back, the new adapter, the rest. On a CPU vLLM takes the calls and keeps its memory."""
    framework, at = Framework(world, "vllm", TOKENS), root / "colocated"
    with world.open_run() as run:
        world.publish(run, 8, folders[1], timeout=SERVING_S)
    for name, source in (("step_1", folders[2]), ("step_2", folders[3])):
        ok(framework.call("POST", "/sleep?level=1"))
        assert framework.ask(name).reason == "ENGINE_ASLEEP"
        assert world.doors["vllm"].ask(ADAPTER).reason == "ENGINE_ASLEEP"
        ok(framework.call("POST", "/wake_up?tags=weights"))
        write(source, at)
        ok(framework.load(name, at))
        ok(framework.call("POST", "/wake_up?tags=kv_cache"))
        framework.answers_by(name, source)  # at once
        until(lambda: world.doors["vllm"].ask(ADAPTER).status == 200, "what Lorry serves is probed again", SERVING_S)
        world.prove(world.doors["vllm"].ask(ADAPTER), version=8)
