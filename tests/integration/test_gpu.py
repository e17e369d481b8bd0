"""What is packed where it is trained is stored as what is copied tensor by tensor. The GPU is the CPU (tests/unit/gpu), unless
LORRY_GPU_TESTED names the library for a real one, as tests/gpu/run does.
"""

import ctypes
import os
import threading

import lorry
import peft
import pytest
import torch
import torch.distributed as dist
import transformers
from lorry.errors import Refused
from testing.fleet import Fleet
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


@pytest.fixture(scope="module")
def fleet(bin_dir, tmp_path_factory):
    """Store and orchestrator that no engine attaches to."""
    with Fleet(bin_dir, tmp_path_factory.mktemp("fleet"), {}) as made:
        yield made


@pytest.fixture
def library(bin_dir, monkeypatch):
    """Of the GPU that the client packs on."""
    path = os.environ.get("LORRY_GPU_TESTED") or str(bin_dir / "liblorry_gpu_cpu.so")
    monkeypatch.setenv("LORRY_GPU", path)
    return path


@pytest.fixture
def state(library, large):
    """A large adapter's tensors, there."""
    kind = lorry.gpu.Packer(library)._kind
    return {name: torch.from_numpy(array).to(kind, copy=True) for name, array in large.state.items()}


@pytest.fixture(params=["mover", "off"])
def carrier(request, bin_dir, monkeypatch):
    monkeypatch.setenv("LORRY_MOVER", str(bin_dir / "lorry") if request.param == "mover" else "off")
    return request.param


@pytest.fixture
def packed(monkeypatch):
    """Of each image whether it was packed."""
    seen, real = [], lorry.gpu.Packer.pack

    def pack(packer, parts, image_bytes):
        packing = real(packer, parts, image_bytes)
        seen.append(packing is not None)
        return packing

    monkeypatch.setattr(lorry.gpu.Packer, "pack", pack)
    return seen


def publish(fleet, adapter, state, config, **options):
    """The digest of what was stored."""
    with lorry.open_run(adapter, **fleet.addresses()) as run:
        run.publish(state, config=config, version=1, progress=False, **options).wait("stored", 60)
    with lorry.Admin(**fleet.addresses()) as admin:
        return admin.versions(adapter)[0].digest


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_packed_adapter_is_stored_byte_for_byte(fleet, large, library, state, carrier, dtype, packed, monkeypatch):
    monkeypatch.setenv("LORRY_GPU", "off")
    copied = publish(fleet, f"copied-{carrier}-{dtype}".lower(), state, large.config, dtype=dtype)
    monkeypatch.setenv("LORRY_GPU", library)
    assert publish(fleet, f"packed-{carrier}-{dtype}".lower(), state, large.config, dtype=dtype) == copied
    assert packed == [True]


def train(model, optimizer, tokens):
    """One step."""
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def test_what_was_trained_there_is_stored_and_the_step_after_is_not(fleet, tiny, library, packed, monkeypatch):
    torch.manual_seed(1)
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny / "model").to(lorry.gpu.Packer(library)._kind)
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    tokens = torch.arange(32, device=model.device).reshape(2, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with lorry.open_run("trained", **fleet.addresses()) as run:
        monkeypatch.setenv("LORRY_GPU", "off")
        copied = lorry.open_run("copied", **fleet.addresses())
        for version in (1, 2, 3):
            train(model, optimizer, tokens)
            handles = [each.publish(model, version=version, progress=False) for each in (run, copied)]
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.add_(1e-3)
            for handle in handles:
                handle.wait("stored", 60)
        copied.close()
    with lorry.Admin(**fleet.addresses()) as admin:
        digests = [[version.digest for version in admin.versions(adapter)] for adapter in ("trained", "copied")]
    assert digests[0] == digests[1] and len(set(digests[0])) == 3
    assert packed == [True] * 3


@pytest.fixture
def alone(library):
    """This process as the one rank of a job of torch.distributed, as FSDP wants it; its mesh."""
    kind = lorry.gpu.Packer(library)._kind
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.init_device_mesh(kind, (1,))
    dist.destroy_process_group()


def test_what_fsdp_shards_is_packed_as_it_lies(fleet, tiny, library, alone, packed, monkeypatch):
    torch.manual_seed(1)
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny / "model").to(alone.device_type)
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    for layer in model.base_model.model.model.layers:
        fully_shard(layer, mesh=alone)
    fully_shard(model, mesh=alone)
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), torch.arange(32, device=alone.device_type).reshape(2, 16))
    assert all(isinstance(value, DTensor) for name, value in model.named_parameters() if "lora_" in name)
    monkeypatch.setenv("LORRY_GPU", "off")
    for way in ("copied", "packed"):
        with lorry.open_run(f"sharded-{way}", **fleet.addresses()) as run:
            run.publish(model, version=1, progress=False).wait("stored", 60)
        monkeypatch.setenv("LORRY_GPU", library)
    with lorry.Admin(**fleet.addresses()) as admin:
        assert admin.versions("sharded-copied")[0].digest == admin.versions("sharded-packed")[0].digest
    assert packed == [True]


def test_a_diverged_step_is_refused_by_the_trainer_itself(fleet, large, state, carrier, monkeypatch):
    next(iter(state.values()))[3, 3] = float("nan")
    with pytest.raises(Refused, match="TENSOR_NOT_FINITE"):
        publish(fleet, f"diverged-{carrier}", state, large.config)
    with lorry.Admin(**fleet.addresses()) as admin:
        assert not admin.versions(f"diverged-{carrier}")


def test_bytes_that_changed_on_their_way_from_the_gpu_are_not_stored(fleet, large, state, carrier, monkeypatch):
    call, landings = lorry.gpu.Packer.call, []

    def call_and_spoil(packer, name, *rest):
        call(packer, name, *rest)
        if name == "land" and not landings:
            landings.append(1)
            ctypes.memset(rest[1] + (3 << 20), 0xEE, 1)

    monkeypatch.setattr(lorry.gpu.Packer, "call", call_and_spoil)
    with pytest.raises(lorry.LorryError, match="RANGE_CORRUPT"):
        publish(fleet, f"spoilt-{carrier}", state, large.config)


def test_a_gpu_that_fails_midway_fails_that_version_alone(fleet, large, state, carrier, packed, monkeypatch):
    monkeypatch.setattr(lorry.gpu, "_load", lorry.gpu.Packer)  # one of its own, as it is left afterwards
    call, landings = lorry.gpu.Packer.call, []
    send, sending = lorry.upload.Uploader.send, threading.Event()

    def call_or_fail(packer, name, *rest):
        landings.extend([name] * (name == "land"))
        if len(landings) > 3 and sending.wait(60):
            raise lorry.LorryError("on the GPU: it fell off the bus", "", "INTERNAL")
        call(packer, name, *rest)

    monkeypatch.setattr(lorry.gpu.Packer, "call", call_or_fail)
    monkeypatch.setattr(lorry.upload.Uploader, "send", lambda *rest: (sending.set(), send(*rest)))
    with lorry.open_run(f"failed-{carrier}", **fleet.addresses()) as run:
        with pytest.raises(lorry.LorryError, match="off the bus"):
            run.publish(state, config=large.config, version=1, progress=False).wait("stored", 60)
        landings.clear()
        run.publish(state, config=large.config, version=2, progress=False).wait("stored", 60)
    assert packed == [True, False]


def test_a_gpu_is_given_up_before_anybody_hears_that_it_failed(fleet, large, state, monkeypatch):
    monkeypatch.setattr(lorry.gpu, "_load", lorry.gpu.Packer)
    happened, give_up, tell = [], lorry.gpu.Packer.give_up, lorry.gpu.Packing._tell
    monkeypatch.setattr(lorry.gpu.Packer, "give_up", lambda packer, why: (happened.append("given up"), give_up(packer, why)))
    monkeypatch.setattr(lorry.gpu.Packing, "_tell", lambda packing, **what: (happened.extend(what), tell(packing, **what)))
    call = lorry.gpu.Packer.call

    def call_or_fail(packer, name, *rest):
        if name == "find":
            raise lorry.LorryError("on the GPU: it fell off the bus", "", "INTERNAL")
        call(packer, name, *rest)

    monkeypatch.setattr(lorry.gpu.Packer, "call", call_or_fail)
    with pytest.raises(lorry.LorryError, match="off the bus"):
        publish(fleet, "given-up", state, large.config)
    assert happened[:2] == ["given up", "failed"]


def test_a_publish_that_is_cancelled_ends_while_the_gpu_is_slow_and_the_next_is_packed(fleet, large, state, carrier, packed,
                                                                                     monkeypatch):
    monkeypatch.setattr(lorry.gpu, "_load", lorry.gpu.Packer)
    call, landings = lorry.gpu.Packer.call, []
    landing, ended = threading.Event(), threading.Event()

    def call_and_wait(packer, name, *rest):
        landings.extend([name] * (name == "land"))
        if len(landings) == 4 and name == "land":
            landing.set()
            assert ended.wait(60)
        call(packer, name, *rest)

    monkeypatch.setattr(lorry.gpu.Packer, "call", call_and_wait)
    with lorry.open_run(f"cancelled-{carrier}", **fleet.addresses()) as run:
        first = run.publish(state, config=large.config, version=1, progress=False)
        assert landing.wait(60)
        first.cancel()
        with pytest.raises(lorry.Cancelled):
            first.wait("stored", 30)
        landed = len(landings)
        ended.set()
        for thread in [each for each in threading.enumerate() if each.name == "lorry-gpu"]:
            thread.join(60)
        run.publish(state, config=large.config, version=2, progress=False).wait("stored", 60)
    assert (landed, packed) == (4, [True, True])
