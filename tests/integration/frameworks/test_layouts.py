"""Engines that cannot take adapters as they were started: the proxy says which flag, serves nothing there, and keeps no framework waiting."""

from __future__ import annotations

import time

import pytest
from testing import engines
from testing.frameworks import Framework, write
from testing.waiting import until
from testing.world import World

LAYOUTS = {
    "sglang-off": ("sglang", ["--no-enable-lora"], "--enable-lora"),
    "sglang-dp": ("sglang", ["--dp-size", "2"], "--dp-size 1"),
    "sglang-workers": ("sglang", ["--tokenizer-worker-num", "2"], "--tokenizer-worker-num 1"),
    "vllm-off": ("vllm", ["--no-enable-lora"], "--enable-lora"),
    "vllm-servers": ("vllm", ["--api-server-count", "2"], "--api-server-count 1"),
}
# Of a call that needs no engine.
SOON_S = 20.0


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def world(bin_dir, tiny, root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    all_of_them = [engines.fake(kind, tiny / "model", log_dir=folder, args=args, name=name) for name, (kind, args, _) in LAYOUTS.items()]
    with World(bin_dir, folder, *all_of_them, proxy_flags={"bindings-root": root}, wait_ready=False) as made:
        yield made


@pytest.mark.parametrize("member", LAYOUTS)
def test_the_flag_is_named(world, root, make_adapter, member):
    flag = LAYOUTS[member][2]

    def detail():
        return world.member(member).get("observed", {}).get("health_detail", "")

    until(lambda: flag in detail(), "status names the flag")
    assert world.member(member)["state"] != "READY"
    write(make_adapter(9900), root / "any")
    began = time.monotonic()
    status, body = Framework(world, member).load("any", root / "any")
    assert status >= 400 and flag in str(body), body
    assert time.monotonic() - began < SOON_S, "whoever starts such an engine learns it from the first call"


def test_attention_groups_are_no_replicas(bin_dir, tiny, root, make_adapter, tmp_path):
    """They take adapters that the load pins, which is one less than the engine has slots in a batch."""
    args = ["--attn-dp-size", "4", "--max-loras-per-batch", "3"]
    engine = engines.fake("sglang", tiny / "model", log_dir=tmp_path, args=args)
    with World(bin_dir, tmp_path, engine, proxy_flags={"bindings-root": root}) as world:
        assert world.member("sglang")["state"] == "READY"
        for i in range(3):
            write(make_adapter(9901 + i), root / f"group{i}")
            status, body = Framework(world, "sglang").load(f"group{i}", root / f"group{i}")
            assert status == 200, body
