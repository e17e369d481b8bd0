"""What is packed where it is trained is stored as what is copied tensor by tensor. The GPU is the CPU (tests/unit/gpu)."""

import ctypes
import threading

import lorry
import pytest
import torch
from lorry.errors import Refused
from testing.fleet import Fleet


@pytest.fixture(scope="module")
def fleet(bin_dir, tmp_path_factory):
    """Store and orchestrator that no engine attaches to."""
    with Fleet(bin_dir, tmp_path_factory.mktemp("fleet"), {}) as made:
        yield made


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
def test_a_packed_adapter_is_stored_byte_for_byte(fleet, large, bin_dir, carrier, dtype, packed, monkeypatch):
    state = {name: torch.from_numpy(array) for name, array in large.state.items()}
    monkeypatch.setenv("LORRY_GPU", "off")
    copied = publish(fleet, f"copied-{carrier}-{dtype}".lower(), state, large.config, dtype=dtype)
    monkeypatch.setenv("LORRY_GPU", str(bin_dir / "liblorry_gpu_cpu.so"))
    assert publish(fleet, f"packed-{carrier}-{dtype}".lower(), state, large.config, dtype=dtype) == copied
    assert packed == [True]


def test_a_diverged_step_is_refused_by_the_trainer_itself(fleet, large, bin_dir, carrier, monkeypatch):
    monkeypatch.setenv("LORRY_GPU", str(bin_dir / "liblorry_gpu_cpu.so"))
    state = {name: torch.from_numpy(array.copy()) for name, array in large.state.items()}
    next(iter(state.values()))[3, 3] = float("nan")
    with pytest.raises(Refused, match="TENSOR_NOT_FINITE"):
        publish(fleet, f"diverged-{carrier}", state, large.config)
    with lorry.Admin(**fleet.addresses()) as admin:
        assert not admin.versions(f"diverged-{carrier}")


def test_bytes_that_changed_on_their_way_from_the_gpu_are_not_stored(fleet, large, bin_dir, carrier, monkeypatch):
    monkeypatch.setenv("LORRY_GPU", str(bin_dir / "liblorry_gpu_cpu.so"))
    call, landings = lorry.gpu.Packer.call, []

    def call_and_spoil(packer, name, *rest):
        call(packer, name, *rest)
        if name == "land" and not landings:
            landings.append(1)
            ctypes.memset(rest[1] + (3 << 20), 0xEE, 1)

    monkeypatch.setattr(lorry.gpu.Packer, "call", call_and_spoil)
    state = {name: torch.from_numpy(array) for name, array in large.state.items()}
    with pytest.raises(lorry.LorryError, match="RANGE_CORRUPT"):
        publish(fleet, f"spoilt-{carrier}", state, large.config)


def test_a_gpu_that_fails_midway_fails_that_version_alone(fleet, large, bin_dir, carrier, packed, monkeypatch):
    monkeypatch.setenv("LORRY_GPU", str(bin_dir / "liblorry_gpu_cpu.so"))
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
    state = {name: torch.from_numpy(array) for name, array in large.state.items()}
    with lorry.open_run(f"failed-{carrier}", **fleet.addresses()) as run:
        with pytest.raises(lorry.LorryError, match="off the bus"):
            run.publish(state, config=large.config, version=1, progress=False).wait("stored", 60)
        landings.clear()
        run.publish(state, config=large.config, version=2, progress=False).wait("stored", 60)
    assert packed == [True, False]


def test_a_gpu_is_given_up_before_anybody_hears_that_it_failed(fleet, large, bin_dir, monkeypatch):
    monkeypatch.setenv("LORRY_GPU", str(bin_dir / "liblorry_gpu_cpu.so"))
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
    state = {name: torch.from_numpy(array) for name, array in large.state.items()}
    with pytest.raises(lorry.LorryError, match="off the bus"):
        publish(fleet, "given-up", state, large.config)
    assert happened[:2] == ["given up", "failed"]


def test_a_publish_that_is_cancelled_ends_while_the_gpu_is_slow_and_the_next_is_packed(fleet, large, bin_dir, carrier, packed,
                                                                                     monkeypatch):
    monkeypatch.setenv("LORRY_GPU", str(bin_dir / "liblorry_gpu_cpu.so"))
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
    state = {name: torch.from_numpy(array) for name, array in large.state.items()}
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
