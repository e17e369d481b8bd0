"""Frameworks that know nothing of Lorry load and unload their adapters at its door: each sequence as it is documented, on engines with
every bug, under traffic; nothing hangs, and every token comes of the bytes that its name stood for."""

from __future__ import annotations

import shutil
import threading

import pytest
from engine_core import expected_tokens
from testing import engines
from testing.engines import KINDS, http_json
from testing.waiting import until
from testing.world import World, restart

SLOTS = 3
ARGS = {
    "sglang": ["--max-loras-per-batch", "2", "--max-loaded-loras", str(SLOTS)],
    "vllm": ["--max-loras", "2", "--max-cpu-loras", str(SLOTS)],
}
BUGS = {"leak_on_queue_abort": True, "leak_on_n": True, "implicit_reload": True, "base_for_unknown": True}
CALL_S = 90.0
ROUNDS = 40
KEEP = 4  # of AReaL: max_head_offpolicyness 2, and 2


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Where frameworks write."""
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def world(bin_dir, tiny, root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    pair = [engines.fake(k, tiny / "model", log_dir=folder, args=ARGS[k], switches=BUGS) for k in KINDS]
    with World(bin_dir, folder, *pair, proxy_flags={"bindings-root": root}) as made:
        yield made


class Framework:
    """Calls one door as frameworks call engines."""

    def __init__(self, world, member):
        self.world, self.member = world, member
        self.kind = world.engines[member].kind

    def _post(self, path, body):
        return http_json("POST", self.world.fleet.door(self.member) + path, body, CALL_S)

    def load(self, name, path, **more):
        prefix = "" if self.kind == "sglang" else "/v1"
        return self._post(prefix + "/load_lora_adapter", {"lora_name": name, "lora_path": str(path), **more})

    def unload(self, name):
        prefix = "" if self.kind == "sglang" else "/v1"
        return self._post(prefix + "/unload_lora_adapter", {"lora_name": name})

    def flush(self):
        return self._post("/flush_cache" if self.kind == "sglang" else "/reset_prefix_cache", {})

    def ask(self, name, **more):
        return self.world.doors[self.member].ask(name, **more)

    def answers_by(self, name, folder):
        answer = self.ask(name)
        assert answer.status == 200, answer.body
        assert answer.tokens == expected_tokens(folder, answer.prompt, len(answer.tokens))
        assert answer.headers["x-lorry-adapter"] == name
        return answer


def ok(reply):
    status, body = reply
    assert status == 200, body


def write(source, target):
    """As a trainer writes one directory anew, in place."""
    target.mkdir(exist_ok=True)
    for file in source.iterdir():
        shutil.copyfile(file, target / file.name)


@pytest.fixture(params=KINDS)
def framework(world, request):
    return Framework(world, request.param)


def test_a_directory_elsewhere_is_refused(framework, tiny, root):
    status, body = framework.load("elsewhere", tiny / "adapters" / "v1")
    assert status == 400 and "PATH_OUTSIDE_ROOTS" in str(body), body
    status, body = framework.load("nothing", root / "nothing")
    assert status in (400, 404), body
    # A door that has just begun says that it does not know yet.
    until(lambda: framework.ask("nothing").reason == "UNKNOWN_ADAPTER", "the name stands for nothing")


def test_astraflow(framework, make_adapter, root):
    """lora_v{seq} per engine, from 1 again with other bytes, in one directory that is written anew in place; none is ever unloaded."""
    folder = root / f"astraflow-{framework.kind}"
    now: dict[str, object] = {}
    wrong: list[str] = []
    stop = threading.Event()

    def ask_on():
        while not stop.is_set():
            name, source = now.get("name"), now.get("source")
            if name is None:
                continue
            answer = framework.ask(name, tokens=6)
            if now.get("name") != name or now.get("source") != source:
                continue  # by then the name may stand for other bytes
            if answer.status != 200 or answer.tokens != expected_tokens(source, answer.prompt, len(answer.tokens)):
                wrong.append(f"{name} {answer.status} {answer.body}")

    workers = [threading.Thread(target=ask_on) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        for step in range(ROUNDS):
            seq = 1 + step % (ROUNDS // 2)
            source = make_adapter(3000 + step)
            write(source, folder)
            reply = framework.load(f"lora_v{seq}", folder)
            ok(reply)
            framework.flush()
            now.clear()
            now.update(source=source, name=f"lora_v{seq}")
            framework.answers_by(f"lora_v{seq}", source)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert not wrong, wrong[:3]
    assert framework.world.engines[framework.member].is_running()


def test_areal(framework, make_adapter, root):
    """{lora_name}-v{N}: load first, then the unload of v{N - keep}, whatever comes of it."""
    folders = {}
    for version in range(12):
        folders[version] = root / f"areal-{framework.kind}-{version}"
        write(make_adapter(4000 + version), folders[version])
        ok(framework.load(f"lora-gsm8k-v{version}", folders[version]))
        if version - KEEP >= 0:
            ok(framework.unload(f"lora-gsm8k-v{version - KEEP}"))
        framework.answers_by(f"lora-gsm8k-v{version}", folders[version])
    for version in range(12 - KEEP, 12):
        framework.answers_by(f"lora-gsm8k-v{version}", folders[version])  # also those that had to make room
    refused = framework.ask("lora-gsm8k-v0")
    assert refused.status == 404 and "lora-gsm8k-v10" in refused.message, "the nearest names"
    status, body = framework.unload("lora-gsm8k-v0")
    assert status == (400 if framework.kind == "sglang" else 404), body
    models = http_json("GET", framework.world.fleet.door(framework.member) + "/v1/models")[1]
    assert "lora-gsm8k-v11" in [card["id"] for card in models["data"]]


def test_miles(framework, make_adapter, root):
    """unload → flush → load → flush under one name, in one directory."""
    folder = root / f"miles-{framework.kind}"
    for step in range(12):
        source = make_adapter(5000 + step)
        write(source, folder)
        if step > 0:
            ok(framework.unload("miles_lora"))
            assert framework.ask("miles_lora").status == 404
            framework.flush()
        ok(framework.load("miles_lora", folder))
        framework.flush()
        framework.answers_by("miles_lora", source)


def test_a_name_in_use_is_not_taken_and_in_place_takes_it(world, make_adapter, root):
    framework = Framework(world, "vllm")
    first, second = root / "first", root / "second"
    write(make_adapter(6000), first)
    write(make_adapter(6001), second)
    ok(framework.load("in_use", first))
    ok(framework.load("in_use", first))  # again, as after an answer that was lost
    replies = []
    long = threading.Thread(target=lambda: replies.append(framework.ask("in_use", tokens=1500)))
    long.start()
    until(lambda: world.metric("vllm", "lorry_door_live_requests") > 0, "it runs")
    status, body = framework.load("in_use", second)
    assert status == 400 and "already been loaded" in str(body), body
    ok(framework.load("in_use", second, load_inplace=True))
    framework.answers_by("in_use", second)
    long.join()
    assert replies[0].tokens == expected_tokens(first, replies[0].prompt, len(replies[0].tokens))


def test_bindings_outlive_proxy_and_engine(world, make_adapter, root):
    framework = Framework(world, "sglang")
    folder = root / "kept"
    source = make_adapter(6100)
    write(source, folder)
    ok(framework.load("kept", folder))
    write(make_adapter(6101), folder)  # what the name stands for is what was there when it was loaded
    restart(world.fleet.proxies["sglang"])
    world.wait_ready("sglang")
    until(lambda: framework.ask("kept").status == 200, "it is served again")
    framework.answers_by("kept", source)
    world.engines["sglang"].kill()
    world.engines["sglang"].start()
    world.engines["sglang"].wait_ready()
    until(lambda: framework.ask("kept").status == 200, "the engine has it again")
    framework.answers_by("kept", source)
