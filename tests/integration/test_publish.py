"""Versions reach every engine; the door serves what it announces and refuses the rest with a reason."""

import re

import pytest
from testing.engine_api import EngineApi
from testing.engines import KINDS, http_json
from testing.waiting import until
from testing.world import ADAPTER

VERSIONS = (1, 2, 3)


@pytest.fixture(scope="module", autouse=True)
def run(world, tiny):
    """Three versions, each served everywhere before the next. `keep` is 2 by default."""
    with world.open_run() as run:
        for number in VERSIONS:
            world.publish(run, number, tiny / "adapters" / f"v{number}")
            for member in KINDS:
                world.prove(world.doors[member].ask(ADAPTER), version=number)
        yield run


@pytest.mark.parametrize("member", KINDS)
@pytest.mark.parametrize("name, version", [("policy", 3), ("policy@latest", 3), ("policy@2", 2), ("policy-v2", 2)])
def test_a_name_is_answered_by_the_version_that_it_means(world, member, name, version):
    for stream in (False, True):
        answer = world.doors[member].ask(name, stream=stream)
        world.prove(answer, version=version, run=1)
        assert answer.headers["x-lorry-adapter"] == ADAPTER
        assert answer.headers["x-lorry-lag"] == str(3 - version)
        assert answer.headers["x-lorry-request-id"]


@pytest.mark.parametrize("member", KINDS)
def test_the_announced_digest_is_the_one_that_was_published(world, member):
    digests = {v.number: v.digest for v in world.admin.versions(ADAPTER)}
    assert world.doors[member].ask("policy@2").digest == digests[2]
    assert world.doors[member].ask("policy").digest == digests[3]


@pytest.mark.parametrize("member", KINDS)
def test_the_base_model_is_not_reached_by_accident(world, member):
    answer = world.doors[member].ask(None)
    assert (answer.status, answer.reason) == (400, "NO_ADAPTER"), answer.body
    assert "lora_path" in answer.message or "model" in answer.message


@pytest.mark.parametrize("member", KINDS)
def test_an_unknown_name_shows_the_nearest(world, member):
    answer = world.doors[member].ask("polcy")
    assert (answer.status, answer.reason) == (404, "UNKNOWN_ADAPTER"), answer.body
    assert '"policy"' in answer.message or " policy" in answer.message


@pytest.mark.parametrize("member", KINDS)
def test_what_is_stored_but_not_loaded_says_so(world, member):
    until(lambda: world.loaded(member) == {(1, 2), (1, 3)}, "v1 left")
    answer = world.doors[member].ask("policy@1")
    assert (answer.status, answer.reason) == (409, "NOT_LOADED"), answer.body
    assert answer.message.endswith("policy@2, policy@3"), answer.message


@pytest.mark.parametrize("member", KINDS)
def test_only_what_policy_keeps_stays_on_the_engine(world, member):
    until(lambda: len(EngineApi(world.engines[member]).listed()) == 2, "two versions are loaded")
    assert world.loaded(member) == {(1, 2), (1, 3)}
    names = set(EngineApi(world.engines[member]).listed())
    assert all(re.fullmatch(r"policy-v[23]-[0-9a-f]{12}", name) for name in names), names


@pytest.mark.parametrize("member", KINDS)
def test_models_are_listed_under_the_clients_names(world, member):
    status, body = http_json("GET", world.fleet.door(member) + "/v1/models")
    assert status == 200
    names = {m["id"] for m in body["data"]}
    assert {"policy", "policy@2", "policy@3"} <= names, names


@pytest.mark.parametrize("member", KINDS)
def test_shared_memory_carried_the_bytes(world, tiny, member):
    text = world.fleet.proxies[member].metrics()
    moved = {t: float(n) for t, n in re.findall(r'fetch_bytes_total\{transport="([\w-]+)"\} (\S+)', text)}
    files = [tiny / "adapters" / f"v{n}" / "adapter_model.safetensors" for n in VERSIONS]
    assert moved.get("ucx-shm") == sum(f.stat().st_size for f in files)
    assert not moved.get("grpc")
    said = [line for line in world.fleet.proxies[member].log_path.read_text().splitlines() if "images come by" in line]
    assert len(said) == 1 and "images come by ucx-shm from" in said[0], "once, as long as it does not change"


def test_an_alias_is_a_name_like_any_other(world):
    world.admin.set_alias(ADAPTER, "eval", 1)
    for member in KINDS:
        until(lambda m=member: world.doors[m].ask("policy@eval").status == 200, f"{member} has policy@eval")
        for stream in (False, True):
            world.prove(world.doors[member].ask("policy@eval", stream=stream), version=1)
    world.admin.set_alias(ADAPTER, "eval", 2)
    for member in KINDS:
        until(lambda m=member: world.serves(m, 2, "policy@eval"), f"{member}: policy@eval moved")
    world.admin.set_alias(ADAPTER, "eval", None)
    for member in KINDS:
        until(lambda m=member: world.doors[m].ask("policy@eval").status == 404, f"{member}: the alias is gone")
        until(lambda m=member: world.loaded(m) == {(1, 2), (1, 3)}, f"{member}: v1 left again")
