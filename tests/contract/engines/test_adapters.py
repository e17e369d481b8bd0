"""Loading, naming, answering and unloading: what the drivers in services/engine_proxy/engines rely on."""

import json
import re
import shutil

import pytest
from safetensors.numpy import load_file, save_file
from testing.engines import SLOTS


def test_a_loaded_adapter_is_listed_at_its_path_and_answers_unlike_the_base(api, adapters, fresh):
    first, second, again = fresh(), fresh(), fresh()
    for name, version in ((first, "v1"), (second, "v2"), (again, "v1")):
        assert api.load(name, adapters / version).status == 200
    listed = api.listed()
    assert listed[first] == str(adapters / "v1") and listed[second] == str(adapters / "v2")
    base, one, two = api.generate(None), api.generate(first), api.generate(second)
    assert len({base.text, one.text, two.text}) == 3
    assert api.generate(again).logprobs == pytest.approx(one.logprobs, abs=1e-4)
    assert api.generate(None).logprobs == pytest.approx(base.logprobs, abs=1e-4)


def test_a_loaded_name_cannot_be_loaded_again(api, adapters, fresh):
    name = fresh()
    api.load(name, adapters / "v1")
    for version in ("v1", "v2"):
        reply = api.load(name, adapters / version)
        assert reply.status == 400 and "already" in reply.message and "loaded" in reply.message
    assert api.listed()[name] == str(adapters / "v1")


def test_unloading_an_unknown_name_is_refused_in_each_engines_own_way(api, fresh):
    name = fresh()
    reply = api.unload(name)
    if api.kind == "sglang":
        assert reply.status == 400
        assert reply.message.startswith(f"LoRA with name {name} does not exist. Loaded LoRAs: ")
    else:
        assert reply.status == 404
        assert reply.message == f"The lora adapter '{name}' cannot be found."


def test_generating_with_an_unknown_name_is_refused(api, fresh):
    name = fresh()
    reply = api.generate(name)
    if api.kind == "sglang":
        assert reply.status == 400
        assert reply.message.startswith(f"Got LoRA adapter that has never been loaded: {name}\n")
    else:
        assert reply.status == 404
        assert reply.message == f"The model `{name}` does not exist. Valid aliases: base."


@pytest.mark.kind("sglang")
def test_sglang_answers_with_the_base_model_when_an_openai_route_names_an_adapter_alone(
    api, adapters, fresh
):
    name = fresh()
    api.load(name, adapters / "v1")
    want = {"base": api.generate(None).text, "adapter": api.generate(name).text}

    def complete(**fields) -> str:
        body = {"prompt": "the quick brown", "max_tokens": 5, "temperature": 0, **fields}
        status, reply = api.engine.call("POST", "/v1/completions", body)
        assert status == 200, reply
        return reply["choices"][0]["text"]

    assert complete(model=name) == want["base"]
    assert complete(model="no-such-name") == want["base"]
    assert complete(model=f"base:{name}") == want["adapter"]
    assert complete(model="base", lora_path=name) == want["adapter"]


REFUSALS = {  # adapter: (SGLang's status and text, vLLM's)
    "no-such-directory": (
        (400, "Repo id must be in the form"),
        (404, "No adapter found for <path>"),
    ),
    "noconfig": (
        (400, "[Errno 2] No such file or directory"),
        (404, "No adapter found for <path>"),
    ),
    "truncated": ((400, "file not fully covered"), (500, "file not fully covered")),
    "bigrank": (
        (400, "with rank 64 is incompatible with the current LoRA memory pool configuration"),
        (500, "LoRA rank 64 is greater than max_lora_rank 16."),
    ),
    "absent": (
        (400, "is incompatible with the current LoRA memory pool"),
        (500, "expected target modules in"),
    ),
    "dora": ((400, "DoRA"), (500, "vLLM does not yet support DoRA.")),
}


@pytest.mark.parametrize("damage", REFUSALS)
def test_a_bad_adapter_is_refused_and_does_no_harm(api, adapters, fresh, damage):
    name = fresh()
    status, text = REFUSALS[damage][api.kind == "vllm"]
    reply = api.load(name, adapters / damage)
    assert (reply.status, text in reply.message) == (status, True), reply.message
    assert name not in api.listed()
    assert api.generate(name).status in (400, 404)
    assert api.generate(None).status == 200


@pytest.mark.kind("vllm")
def test_vllm_takes_a_wrong_shape_for_good(api, adapters, fresh):
    name = fresh()
    assert api.load(name, adapters / "wrongshape").status == 200
    assert api.generate(name).status == 200


def test_a_missing_field_is_refused(api):
    for call in ("load", "unload"):
        status, _ = api.engine.call("POST", f"{api.v1}/{call}_lora_adapter", {})
        assert status == 400


def test_the_load_route_can_be_seen_without_using_it(api):
    assert api.engine.call("GET", f"{api.v1}/load_lora_adapter")[0] == 405
    assert api.engine.call("GET", f"{api.v1}/no_such_route")[0] == 404


def test_an_unloaded_name_is_gone_on_vllm_and_comes_back_on_sglang(api, adapters, fresh):
    name = fresh()
    api.load(name, adapters / "v1")
    text = api.generate(name).text
    assert api.unload(name).status == 200
    assert name not in api.listed()
    reply = api.generate(name)
    if api.kind == "vllm":
        assert reply.status == 404
        return
    assert (reply.status, reply.text) == (200, text)
    assert name in api.listed()
    assert "already loaded" in api.load(name, adapters / "v2").message


def test_more_adapters_than_slots_are_accepted_and_the_oldest_one_is_read_again_when_used(
    api, adapters, fresh
):
    names = [fresh() for _ in range(SLOTS + 2)]
    for i, name in enumerate(names):
        assert api.load(name, adapters / f"v{i % 3 + 1}").status == 200
    listed = api.listed()
    if api.kind == "sglang":
        assert set(listed) == set(names[2:])
    else:
        assert set(listed) == set(names)
    assert api.generate(names[0]).text == api.generate(names[3]).text


@pytest.mark.kind("sglang")
def test_sglang_survives_a_deleted_directory(api, adapters, fresh):
    kept, name = fresh(), fresh()
    shutil.copytree(adapters / "v1", adapters / "gone")
    api.load(kept, adapters / "v2")
    api.load(name, adapters / "gone")
    api.generate(name)
    api.unload(name)
    shutil.rmtree(adapters / "gone")
    reply = api.generate(name)
    assert reply.status == 400
    assert reply.message.startswith(
        f"Failed to implicitly load LoRA adapter {name}: Repo id must be"
    )
    assert api.generate(kept).status == 200


def test_no_engine_tells_what_it_loaded(api, adapters, fresh):
    """One that lacks half of its layers is answered and listed as the whole one is: only what it generates can prove it."""
    whole, half = fresh(), fresh()
    tensors = load_file(adapters / "v1" / "adapter_model.safetensors")
    shutil.copytree(adapters / "v1", adapters / "half")
    save_file({k: v for k, v in tensors.items() if "layers.1." not in k}, adapters / "half" / "adapter_model.safetensors")

    def told(name, folder):
        reply = api.load(name, adapters / folder)
        assert reply.status == 200
        card = next(m for m in api.engine.call("GET", "/v1/models")[1]["data"] if m["id"] == name)
        said = json.dumps([reply.body, {k: v for k, v in card.items() if k not in ("created", "permission")}])
        return said.replace(name, "NAME").replace(str(adapters / folder), "PATH").replace(whole, "OTHER")

    first, second = told(whole, "v1"), told(half, "half")
    assert not re.search(r"tensor|layer|param|modul", first), first
    assert api.kind == "sglang" or first == second
    assert api.generate(whole).text != api.generate(half).text or api.engine.is_fake
