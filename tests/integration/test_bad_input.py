"""Bad input: each kind is refused with its own reason and a remedy, and the version before it goes on serving."""

import contextlib
import json
import os
import shutil
import subprocess

import lorry
import numpy as np
import pytest
from lorry.errors import LorryError
from testing import engines
from testing.engines import KINDS, free_port
from testing.fleet import Service
from testing.raw_publish import RawImage, RawPublisher
from testing.waiting import until
from testing.world import ADAPTER, World

GOOD = 10  # the version that serves all along
NEXT = 11  # what the bad ones would have become


@pytest.fixture(scope="module")
def world(bin_dir, tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    pair = [engines.fake(kind, tiny / "model", log_dir=folder) for kind in KINDS]
    with World(bin_dir, folder, *pair) as made:
        made.admin.set_policy(ADAPTER, {"stage_deadline_ms": 4000})
        yield made


@pytest.fixture(scope="module")
def run(world, tiny):
    with world.open_run() as run:
        world.publish(run, GOOD, tiny / "adapters" / "v1")
        yield run


@pytest.fixture
def raw(world, run):
    publisher = RawPublisher(world.fleet.addresses(), ADAPTER, run.number)
    yield publisher
    publisher.close()


@pytest.fixture
def still_served(world, run):
    """Afterwards nothing was stored, and the version before serves on."""
    before = [(v.run, v.number) for v in world.admin.versions(ADAPTER)]
    yield
    assert [(v.run, v.number) for v in world.admin.versions(ADAPTER)] == before
    for member in KINDS:
        world.prove(world.doors[member].ask(ADAPTER), version=GOOD)


@contextlib.contextmanager
def refused(reason, *words, code=None):
    """The block raises LorryError with that reason, and a message with all of the words."""
    with pytest.raises(LorryError) as caught:
        yield
    error = caught.value
    assert error.reason == reason, error
    assert all(w.lower() in error.message.lower() for w in words), error.message
    assert code is None or error.code == code, error.code


# What tiny_model.py makes: directory, reason, and words of the message: what is wrong and what to do.
BAD_ADAPTERS = [
    ("truncated", "IMAGE_TRUNCATED", ["publish"]),
    ("noconfig", "CONFIG_MISSING", ["adapter_config.json"]),
    ("nan", "TENSOR_NOT_FINITE", ["diverged"]),
    ("dora", "DORA_UNSUPPORTED", ["use_dora=False"]),
    ("ia3", "ADAPTER_KIND_UNSUPPORTED", ["merged weights"]),
    ("modules_to_save", "MODULES_TO_SAVE_UNSUPPORTED", ["modules_to_save", "merged weights"]),
    ("unpaired", "TENSOR_UNPAIRED", ["lora_"]),
]


@pytest.mark.parametrize("name, reason, words", BAD_ADAPTERS, ids=[b[0] for b in BAD_ADAPTERS])
def test_a_bad_directory_is_refused_to_a_python_trainer(still_served, run, tiny, name, reason, words):
    with refused(reason, *words):
        run.publish(tiny / "adapters" / name, version=NEXT).wait("stored", 30)


# The store itself judges, whatever client speaks.
@pytest.mark.parametrize("name, reason, words", [b for b in BAD_ADAPTERS if b[0] != "noconfig"],
                         ids=[b[0] for b in BAD_ADAPTERS if b[0] != "noconfig"])
def test_the_store_refuses_it_from_any_client(still_served, raw, tiny, name, reason, words):
    with refused(reason, code="INVALID_ARGUMENT"):
        raw.publish(NEXT, RawImage.of(tiny / "adapters" / name))


def good_image(tiny):
    return RawImage.of(tiny / "adapters" / "v2")


def tensor(begin, end, shape=(8, 128)):
    return {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}


A, B = (f"base_model.model.model.layers.0.self_attn.q_proj.lora_{x}.weight" for x in "AB")
ABSURD_HEADERS = {
    "overlapping": {A: tensor(0, 4096), B: tensor(0, 4096, (128, 8))},
    "backwards": {A: tensor(4096, 0), B: tensor(4096, 8192, (128, 8))},
    "huge offsets": {A: tensor(0, 1 << 62), B: tensor(1 << 62, 1 << 63, (128, 8))},
    "shape that overflows": {A: tensor(0, 4096, (1 << 40, 1 << 40)), B: tensor(4096, 8192, (128, 8))},
    "negative": {A: tensor(-4096, 0), B: tensor(0, 4096, (128, 8))},
    "a list": [1, 2, 3],
}


@pytest.mark.parametrize("entries", ABSURD_HEADERS.values(), ids=ABSURD_HEADERS)
def test_a_header_that_claims_absurd_sizes(still_served, raw, tiny, entries):
    image = RawImage.with_header(entries, bytes(8192), good_image(tiny).config_json)
    with refused("IMAGE_MALFORMED", code="INVALID_ARGUMENT"):
        raw.publish(NEXT, image)


def test_a_header_length_that_is_absurd(still_served, raw, tiny):
    image = good_image(tiny)
    image.header = (1 << 60).to_bytes(8, "little") + image.header[8:]
    with refused("IMAGE_MALFORMED", code="INVALID_ARGUMENT"):
        raw.publish(NEXT, image)


def test_an_image_that_is_said_to_be_enormous(still_served, raw, tiny):
    image = good_image(tiny)
    image.image_bytes = 1 << 62
    with refused("ARGUMENT_INVALID", "image_bytes", code="INVALID_ARGUMENT"):
        raw.begin(NEXT, image)
    image.image_bytes = 1 << 39
    with refused("IMAGE_MALFORMED", code="INVALID_ARGUMENT"):
        raw.begin(NEXT, image)


def test_a_config_that_is_no_json(still_served, raw, run, tiny, tmp_path):
    image = good_image(tiny)
    image.config_json = image.config_json[:-20]
    with refused("CONFIG_MALFORMED"):
        raw.publish(NEXT, image)
    folder = shutil.copytree(tiny / "adapters" / "v2", tmp_path / "cut")
    (folder / "adapter_config.json").write_text(image.config_json)
    with refused("CONFIG_MALFORMED"):
        run.publish(folder, version=NEXT).wait("stored", 30)


# --- On the way ---


def test_corrupted_bytes_are_refused_and_can_be_sent_again(still_served, world, raw, tiny):
    image = good_image(tiny)
    begun = raw.begin(NEXT, image)
    start = begun.missing[0].offset
    wrong = b"\x55" + image.data[start + 1 : start + 4096]
    checksum_of_others = b"\x00" * 16
    with refused("RANGE_CORRUPT", code="DATA_LOSS"):
        raw.put(begun.ticket, start, wrong, checksum_of_others)
    assert world.fleet.store.samples('lorry_transfer_errors_total{reason="RANGE_CORRUPT",transport="grpc"}') == [1.0]
    assert "a transfer failed: peer=ipv4:127.0.0.1 " in world.fleet.store.log_tail(), "the host, as its memory may be bad"
    raw.put(begun.ticket, start, image.data[start : start + 4096])
    with refused("RANGES_MISSING"):
        raw.commit(begun.upload_id)


def test_other_bytes_for_a_range_kill_the_upload(still_served, raw, tiny):
    image = good_image(tiny)
    begun = raw.begin(NEXT, image)
    start = begun.missing[0].offset
    raw.put(begun.ticket, start, image.data[start : start + 4096])
    raw.put(begun.ticket, start, image.data[start : start + 4096])  # the same again is nothing
    with refused("RANGE_CONFLICT", code="ABORTED"):
        raw.put(begun.ticket, start, bytes(4096))
    for _ in range(2):  # the upload is dead, and says of what
        with refused("RANGE_CONFLICT", code="ABORTED"):
            raw.commit(begun.upload_id)


def test_a_digest_that_is_not_what_was_expected(still_served, raw, tiny):
    with refused("DIGEST_MISMATCH"):
        raw.publish(NEXT, good_image(tiny), expected_digest="sha256-xxh3:" + "0" * 64)


def test_wrong_tickets(still_served, raw, tiny):
    image = good_image(tiny)
    begun, fetch = raw.begin(NEXT, image), raw.open_fetch(GOOD)
    start = begun.missing[0].offset
    forged = begun.ticket[:-1] + bytes([begun.ticket[-1] ^ 1])
    for ticket in (b"", b"nonsense", forged, begun.ticket[:20], fetch.ticket):
        with refused("BAD_TICKET", code="PERMISSION_DENIED"):
            raw.put(ticket, start, image.data[start : start + 4096])
    with refused("BAD_TICKET"):
        raw.get(begun.ticket)
    for outside in (image.image_bytes, image.image_bytes - 1, 1 << 40):  # the ticket is good, the range is not
        with refused("BAD_RANGE", code="OUT_OF_RANGE"):
            raw.put(begun.ticket, outside, bytes(4096))
    assert raw.get(fetch.ticket) == RawImage.of(tiny / "adapters" / "v1").data


# --- Numbers ---


def test_the_same_version_again_is_success(still_served, world, run, tiny):
    digest = run.publish(tiny / "adapters" / "v1", version=GOOD)
    digest.wait("serving", 30)
    assert digest.digest == world.admin.versions(ADAPTER)[0].digest


def test_other_bytes_for_a_published_version(still_served, run, raw, tiny):
    with refused("VERSION_CONFLICT", "next", code="ALREADY_EXISTS"):
        run.publish(tiny / "adapters" / "v2", version=GOOD).wait("stored", 30)
    with refused("VERSION_CONFLICT", "next", code="ALREADY_EXISTS"):  # and so for a later attempt
        raw.publish(GOOD, good_image(tiny))


def test_a_version_that_goes_backwards(still_served, run, tiny):
    with refused("VERSION_TOO_OLD", str(GOOD), code="FAILED_PRECONDITION"):
        run.publish(tiny / "adapters" / "v2", version=GOOD - 1).wait("stored", 30)


# --- Room and time ---


@contextlib.contextmanager
def lone_store(bin_dir, folder, **flags):
    """An adapter-store by itself; yields (service, addresses)."""
    at = f"127.0.0.1:{free_port()}"
    ports = {"ucx": "false", "admin-listen": f"127.0.0.1:{free_port()}"}
    store = Service(bin_dir / "adapter-store", "store", folder, {"listen": at, **ports, **flags})
    try:
        store.start().wait_ready()
        yield store, {"store": at, "orchestrator": None}
    finally:
        store.stop()


def big_adapter(megabytes, seed=0):
    """(state dict, config) of one module with about so many bytes."""
    width = megabytes * (1 << 20) // (2 * 8 * 4)
    noise = np.random.default_rng(seed)
    name = "base_model.model.model.layers.0.mlp.up_proj.lora_{}.weight"
    state = {
        name.format("A"): noise.standard_normal((8, width), dtype=np.float32),
        name.format("B"): noise.standard_normal((width, 8), dtype=np.float32),
    }
    return state, {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["up_proj"]}


def test_a_full_disk(bin_dir, tiny, tmp_path):
    folder = tmp_path / "store"
    (folder / "data").mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", folder / "data"]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("a small file system takes root to mount; --quota-bytes has a case of its own")
    try:
        with (
            lone_store(bin_dir, folder, **{"disk-free-min-bytes": 0}) as (_, addresses),
            lorry.open_run(ADAPTER, **addresses) as run,
        ):
            run.publish(tiny / "adapters" / "v1", version=1).wait("stored", 30)
            state, config = big_adapter(32)
            with refused("DISK_FULL", code="RESOURCE_EXHAUSTED"):
                run.publish(state, config=config, version=2).wait("stored", 30)
            run.publish(tiny / "adapters" / "v2", version=2).wait("stored", 30)
            admin = lorry.Admin(**addresses)
            assert [v.number for v in admin.versions(ADAPTER)] == [2, 1]
            admin.close()
    finally:
        subprocess.run(["umount", folder / "data"], check=True)


def test_a_disk_that_would_get_too_full(bin_dir, tiny, tmp_path):
    with (
        lone_store(bin_dir, tmp_path / "store", **{"disk-free-min-bytes": 1 << 60}) as (_, addresses),
        lorry.open_run(ADAPTER, **addresses) as run,
        refused("DISK_FULL", code="RESOURCE_EXHAUSTED"),
    ):
        run.publish(tiny / "adapters" / "v1", version=1).wait("stored", 30)


def test_a_quota_that_is_used_up(bin_dir, tiny, tmp_path):
    size = (tiny / "adapters" / "v1" / "adapter_model.safetensors").stat().st_size
    with (
        lone_store(bin_dir, tmp_path / "store", **{"quota-bytes": size + size // 2}) as (_, addresses),
        lorry.open_run(ADAPTER, **addresses) as run,
    ):
        run.publish(tiny / "adapters" / "v1", version=1).wait("stored", 30)
        admin = lorry.Admin(**addresses)
        admin.set_alias(ADAPTER, "best", 1)
        with refused("QUOTA_EXCEEDED", code="RESOURCE_EXHAUSTED"):
            run.publish(tiny / "adapters" / "v2", version=2).wait("stored", 30)
        assert [v.number for v in admin.versions(ADAPTER)] == [1]
        admin.close()


def test_expired_tickets(bin_dir, tiny, tmp_path):
    """An upload goes on from what is there with a new ticket of the same attempt."""
    with (
        lone_store(bin_dir, tmp_path / "store", **{"ticket-life-ms": 3000}) as (_, addresses),
        lorry.open_run(ADAPTER, **addresses) as run,
    ):
        run.publish(tiny / "adapters" / "v1", version=1).wait("stored", 30)
        raw = RawPublisher(addresses, ADAPTER, run.number)
        image = good_image(tiny)
        half = image.image_bytes // 2
        begun, fetch = raw.begin(2, image, attempt=1), raw.open_fetch(1)
        start = begun.missing[0].offset
        raw.put(begun.ticket, start, image.data[start:half])

        def reason(use):
            try:
                use()
            except LorryError as error:
                return error.reason
            return ""

        def put_again():  # a no-op while the ticket lives
            raw.put(begun.ticket, start, image.data[start:half])

        assert until(lambda: reason(put_again), "the upload's ticket ends", 20) == "TICKET_EXPIRED"
        with refused("TICKET_EXPIRED", "ask", code="PERMISSION_DENIED"):
            raw.put(begun.ticket, half, image.data[half:])
        assert until(lambda: reason(lambda: raw.get(fetch.ticket)), "the fetch's ticket ends", 20) == "TICKET_EXPIRED"

        again = raw.begin(2, image, attempt=1)
        assert again.upload_id == begun.upload_id
        assert [(m.offset, m.length) for m in again.missing] == [(half, image.image_bytes - half)]
        raw.put(again.ticket, half, image.data[half:])
        assert raw.commit(again.upload_id).ref.number == 2
        assert raw.get(raw.open_fetch(2).ticket) == image.data
        raw.close()


# --- Engines that cannot ---


def test_a_rank_above_the_engines(world, run, tiny):
    """Last but one: it is stored, as another engine might serve it; these do not, and say why."""
    handle = run.publish(tiny / "adapters" / "bigrank", version=NEXT + 1)
    handle.wait("stored", 30)

    def why():
        pool = next(p for p in world.admin.status()["pools"] if p["adapter"] == ADAPTER)
        running = pool.get("running", {})
        return running.get("detail") if running.get("reason") == "TOO_FEW_ENGINES" else None

    detail = until(why, "the status says why it waits", 20)
    for member in KINDS:
        assert f"{member}: rank 64 is above the engine's --max-lora-rank 16" in detail, detail
    with pytest.raises(lorry.SyncFailed, match="--max-lora-rank") as failed:
        handle.wait("serving", 300)
    assert failed.value.reason == "ENGINE_LIMITS"
    for member in KINDS:
        world.prove(world.doors[member].ask(ADAPTER), version=GOOD)


def test_and_the_next_good_one_is_served(world, run, tiny):
    world.publish(run, NEXT + 2, tiny / "adapters" / "v3")
    world.wait_serves(NEXT + 2)


def test_an_engine_without_lora_says_which_flag_it_lacks(bin_dir, tiny, tmp_path):
    bare = [engines.fake(k, tiny / "model", log_dir=tmp_path, args=["--no-enable-lora"]) for k in KINDS]
    with World(bin_dir, tmp_path, *bare, wait_ready=False) as world, world.open_run() as run:

        def detail(member):
            return world.member(member).get("observed", {}).get("health_detail", "")

        for member in KINDS:
            until(lambda m=member: "ENGINE_LORA_DISABLED" in detail(m), "the engine was looked at")
            assert world.member(member)["state"] == "JOINING"
            assert "--enable-lora" in detail(member), detail(member)

            def is_refused(m=member):
                answer = world.doors[m].ask(ADAPTER)
                return (answer.status, answer.reason) == (409, "NOT_LOADED")

            until(is_refused, "the door has heard of the adapter, and has nothing of it")
        handle = world.publish(run, 1, tiny / "adapters" / "v1", "stored")
        for number, kind in enumerate(KINDS):
            bare[number].kill()
            good = engines.fake(kind, tiny / "model", log_dir=tmp_path, port=bare[number].port)
            world.engines[kind] = good
            good.start().wait_ready()
        handle.wait("serving", 60)
        world.wait_serves(1)


NO_DEV_MODE = {"VLLM_SERVER_DEV_MODE": "0"}


def test_a_vllm_without_dev_mode_serves_and_says_what_is_not_known_of_it(bin_dir, tiny, tmp_path):
    engine = engines.fake("vllm", tiny / "model", log_dir=tmp_path, env=NO_DEV_MODE)
    with World(bin_dir, tmp_path, engine) as world, world.open_run() as run:
        world.publish(run, 1, tiny / "adapters" / "v1")
        world.wait_serves(1)
        observed = world.member("vllm")["observed"]
        assert observed["health_detail"].startswith("ENGINE_DEV_MODE_OFF: "), observed
        assert "VLLM_SERVER_DEV_MODE=1" in observed["health_detail"]
        assert "slots" not in observed["limits"], observed["limits"]
        _, findings = world.doctor(bin_dir)
        about = [f for f in findings if f["what"].startswith("vllm ") and f["grade"] != "good"]
        assert [f["grade"] for f in about] == ["warning", "warning"], findings
        assert "ENGINE_DEV_MODE_OFF" in about[0]["what"]
        assert "slot limit that is not known" in about[1]["what"]
        assert all("VLLM_SERVER_DEV_MODE=1" in f["remedy"] for f in about), about
        # A rank above its own is found out by the load alone, and that is said with the engine's words.
        handle = run.publish(tiny / "adapters" / "bigrank", version=2)
        handle.wait("stored", 30)
        with pytest.raises(lorry.SyncFailed) as failed:
            handle.wait("serving", 60)
        assert failed.value.reason == "REFUSED", failed.value
        assert "ENGINE_REFUSED" in str(failed.value) and "64" in str(failed.value), failed.value
        assert world.member("vllm")["state"] == "READY", "the version is to blame, not the engine"
        world.prove(world.doors["vllm"].ask(ADAPTER), version=1)


def test_an_engine_may_refuse_in_any_language(bin_dir, tiny, tmp_path):
    engine = engines.fake("sglang", tiny / "model", log_dir=tmp_path)
    with World(bin_dir, tmp_path, engine) as world, world.open_run() as run:
        world.publish(run, 1, tiny / "adapters" / "v1")
        world.wait_serves(1)
        # What is cut to 500 bytes ends within a character.
        engine.set(load_error="€" * 200)
        with pytest.raises(lorry.SyncFailed) as failed:
            run.publish(tiny / "adapters" / "v2", version=2).wait("serving", 60)
        assert failed.value.reason == "REFUSED", failed.value
        assert "€€€" in str(failed.value), failed.value
        assert world.member("sglang")["state"] == "READY", "the version is to blame, not the engine"
        engine.set(load_error="")
        world.publish(run, 3, tiny / "adapters" / "v3")
        world.wait_serves(3)


def test_a_vllm_without_dev_mode_and_without_lora_is_known_all_the_same(bin_dir, tiny, tmp_path):
    bare = engines.fake("vllm", tiny / "model", log_dir=tmp_path, env=NO_DEV_MODE, args=["--no-enable-lora"])
    with World(bin_dir, tmp_path, bare, wait_ready=False) as world:

        def found():  # before that it waits for the engine
            detail = world.member("vllm").get("observed", {}).get("health_detail", "")
            return detail if detail.startswith("ENGINE_LORA_DISABLED: ") else ""

        detail = until(found, "the engine was looked at")
        assert "--enable-lora" in detail
        assert world.member("vllm")["state"] == "JOINING"
        assert any(f["grade"] == "bad" and "ENGINE_LORA_DISABLED" in f["what"] for f in world.doctor(bin_dir)[1])


@pytest.mark.parametrize(("flag", "sentence"), [
    ("--log-level=verbose", "it is trace, debug, info, warn, error, critical or off"),
    ("--advertise-host=node1:8000", '--advertise-host is "node1:8000"; write a name or an address, without a port'),
    ("--door-advertise=node1", '--door-advertise is "node1"; write it as host:port'),
    ("--ready-file=/no/such/folder/file", "--ready-file=/no/such/folder/file cannot be written"),
])
def test_a_flag_that_cannot_be_used_ends_the_proxy_with_what_to_write(bin_dir, tmp_path, flag, sentence):
    nobody = f"127.0.0.1:{free_port()}"
    ended = subprocess.run(
        [bin_dir / "engine-proxy", f"--engine=http://{nobody}", f"--store={nobody}", f"--orchestrator={nobody}", "--member=m",
         f"--data-dir={tmp_path / 'data'}", f"--image-dir={tmp_path / 'images'}", "--goodbye-wait-ms=0", flag],
        capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended
    assert sentence in ended.stderr, ended.stderr


def test_an_orchestrator_that_cannot_say_that_it_is_ready_stops_as_ever(bin_dir, tmp_path):
    flags = [f"--data-dir={tmp_path / 'data'}", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0",
             "--ready-file=/no/such/folder/file", f"--store=127.0.0.1:{free_port()}"]
    ended = subprocess.run([bin_dir / "sync-orchestrator", *flags], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended
    assert "--ready-file=/no/such/folder/file cannot be written" in ended.stderr, ended.stderr
    assert "stopping" in ended.stderr, "what its driver uses was not stopped in order"
