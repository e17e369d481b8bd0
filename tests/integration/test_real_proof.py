"""Real SGLang and real vLLM: engines that compute something else than was trained are found out, and doors change in order."""

import json

import lorry
import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.numpy import load_file
from testing.engines import KINDS
from testing.order import check_order
from testing.reference import Reference
from testing.waiting import until
from testing.world import ADAPTER, Traffic, World
from transformers import LlamaForCausalLM

pytestmark = pytest.mark.real
# A token of a real engine on a busy machine; a load and its probe take seconds there.
SERVING_S = 300.0
PROMPTS = [[1, *range(40 + 7 * i, 300, 23)] for i in range(3)]
# Three implementations of one network in float32: seen below 1e-5; what is planted is 1,000 times as far.
SAME = 1e-3


@pytest.fixture(scope="module")
def world(bin_dir, engine_pair, tmp_path_factory):
    with World(bin_dir, tmp_path_factory.mktemp("fleet"), *engine_pair.values()) as made:
        yield made


def parts_of(folder):
    tensors = load_file(folder / "adapter_model.safetensors")
    return tensors, json.loads((folder / "adapter_config.json").read_text())


def gap(world, member, number, over="mean"):
    return int(world.reported(member, number)["gap"].get(f"{over}_ppm", 0)) / 1e6


def test_what_was_not_trained_is_known_by_its_reference(world, tiny):
    base = LlamaForCausalLM.from_pretrained(tiny / "model", torch_dtype=torch.float32)
    trained = PeftModel.from_pretrained(base, tiny / "adapters" / "v1")
    reference = lorry.Reference.of(trained, PROMPTS)
    tensors, config = parts_of(tiny / "adapters" / "v1")
    planted = {
        "alpha doubled": (tensors, config | {"lora_alpha": 2 * config["lora_alpha"]}),
        "a layer dropped": ({k: v for k, v in tensors.items() if "layers.1." not in k}, config),
        "another version": parts_of(tiny / "adapters" / "v2"),
        "the base": ({k: v * np.float32(1e-12) if "lora_B" in k else v for k, v in tensors.items()}, config),
    }
    with world.open_run() as run:
        run.publish(trained, version=1, reference=PROMPTS).wait("serving", SERVING_S)
        for member in KINDS:
            assert world.told(member, 1) == "LOADED"
            assert gap(world, member, 1) < SAME and gap(world, member, 1, "max") < SAME
            print(f"{member}: mean {gap(world, member, 1):.1e}, at most {gap(world, member, 1, 'max'):.1e}")
        for number, (what, (weights, fields)) in enumerate(planted.items(), 2):
            run.publish(weights, config=fields, version=number, reference=reference).wait("stored", SERVING_S)
            world.wait_refused(number, "PROBE_GAP", *KINDS, deadline_s=SERVING_S)
            print(f"{what}: {[world.verdict(m, number)[:200] for m in KINDS]}")
        assert world.latest() == (run.number, 1)
        # The same bytes with what they do compute are served: it was the reference that told.
        run.publish(tensors, config=config, version=9, reference=reference).wait("serving", SERVING_S)
        assert max(gap(world, m, 9) for m in KINDS) < SAME


ORDERED = "ordered"
LAST = 6


def test_real_doors_change_together(world, tiny, make_adapter):
    """As test_barrier.py's, with what engines answer recomputed by torch and peft."""
    folders = [make_adapter(number) for number in range(1, LAST + 1)]
    world.judge = Reference(tiny / "model", folders).judge
    world.admin.create(ORDERED, {"mode": "barrier", "barrier_deadline_ms": 60_000, "max_staleness": 1})
    with world.open_run(ORDERED) as run:
        world.publish(run, 1, folders[0], timeout=SERVING_S)
        with Traffic(world, name=ORDERED, pause_s=0.05) as traffic:
            for number in range(2, LAST + 1):
                world.publish(run, number, folders[number - 1], timeout=SERVING_S)
                asked = {m: traffic.good(m) for m in KINDS}
                for member in KINDS:
                    until(lambda m=member, n=asked: traffic.good(m) > n[m] + 3, f"{member} answers", SERVING_S)
    traffic.check()
    check_order(traffic)
    assert {a.version for _, a in traffic.answers} == set(range(1, LAST + 1))
    print(f"{traffic.good()} answers of {LAST} versions in order, 0 refused")
