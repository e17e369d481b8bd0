"""What people are told while a version is on its way, and what their own calls answer: policy, pins, leases, slots."""

import contextlib
import json
import subprocess
import threading
from concurrent import futures

import grpc
import lorry
import pytest
from lorry.common.v1 import adapter_pb2
from lorry.sync.v1 import sync_pb2
from testing.engine_api import EngineApi
from testing.engines import KINDS
from testing.waiting import DEADLINE_S, until
from testing.world import ADAPTER, Steps, restart


@pytest.fixture(scope="module")
def steps(world, make_adapter):
    with world.open_run() as run:
        steps = Steps(world, run, make_adapter)
        steps.next()
        yield steps


class OlderStore(grpc.GenericRpcHandler):
    """The store, as one that does not say which Lorry it is."""

    def __init__(self, target: str) -> None:
        self._store = grpc.insecure_channel(target)
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait()
        self._store.close()

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if call.method.endswith("/GetRevision"):
            return None
        return grpc.unary_unary_rpc_method_handler(
            lambda request, _: self._store.unary_unary(call.method)(request, timeout=DEADLINE_S))


@pytest.fixture
def words(world, bin_dir):
    """words("status"): the command line."""
    at = world.fleet.addresses()
    return lambda *said: [bin_dir / "lorry", *said, "--store", at["store"], "--orchestrator", at["orchestrator"]]


@pytest.fixture
def cli(words):
    """cli("status"): the program's exit code, stdout and stderr."""

    def run(*said: str) -> tuple[int, str, str]:
        done = subprocess.run(words(*said), capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def held_loads(world):
    """Engines whose loads hang; `held_loads()` lets them go on."""

    def hold(on: bool = False) -> None:
        for engine in world.engines.values():
            engine.set(hold_loads=on)

    hold(True)
    yield hold
    hold(False)


def test_doctor_asks_the_store_which_lorry_it_is(world, bin_dir):
    def versions():
        return [f for f in world.doctor(bin_dir)[1] if "Lorry" in f["what"]]

    (alike,) = versions()
    assert alike["grade"] == "good" and alike["what"].startswith("everything is Lorry "), alike
    with contextlib.closing(OlderStore(world.fleet.addresses()["store"])) as older, pytest.MonkeyPatch.context() as patch:
        addresses = world.fleet.addresses() | {"store": older.address}
        patch.setattr(world.fleet, "addresses", lambda: addresses)
        (differs,) = versions()
    assert differs["grade"] == "warning" and "unknown (adapter-store)" in differs["what"], differs


def test_a_publisher_sees_where_its_version_stands_on_each_engine(world, steps, held_loads):
    handle = steps.begin()
    waiting = threading.Thread(target=steps.finish, args=(handle,))
    waiting.start()
    try:
        until(lambda: handle.status.members == dict.fromkeys(KINDS, "LOADING"), "both engines load it")
        assert handle.status.state == "STAGING"
    finally:
        held_loads()
        waiting.join(DEADLINE_S)
    assert handle.status.state == "ACTIVE"
    assert handle.status.members == dict.fromkeys(KINDS, "ACTIVE")


def test_a_wait_that_runs_out_says_so_in_words(world, steps, make_adapter, held_loads, cli):
    steps.number += 1
    publish = ["publish", str(make_adapter(steps.number)), "--adapter", ADAPTER, "--version", str(steps.number)]
    status, _, err = cli(*publish, "--wait", "serving", "--timeout", "2s")
    assert status != 0
    assert f"v{steps.number} is stored, but not serving after" in err
    assert "Deadline Exceeded" not in err
    held_loads()
    until(lambda: world.latest()[1] == steps.number, "it goes on by itself")


def test_the_command_line_shows_where_a_version_stands_on_each_engine(steps, make_adapter, held_loads, words):
    steps.number += 1
    publish = ["publish", str(make_adapter(steps.number)), "--adapter", ADAPTER, "--version", str(steps.number)]
    command = words(*publish, "--wait", "serving", "--timeout", f"{DEADLINE_S:.0f}s")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        said = next((line for line in program.stderr if "(sglang, vllm loading)" in line), "")
        held_loads()
        out, err = program.communicate(timeout=DEADLINE_S)
    assert said.strip() == "STAGING (sglang, vllm loading)", err
    assert program.returncode == 0, err
    assert "serving on 2 of 2 engines" in out


def test_a_policy_that_contradicts_itself_is_refused(world, steps, cli):
    _, before, _ = cli("policy", ADAPTER)
    with pytest.raises(lorry.LorryError) as refused:
        world.admin.set_policy(ADAPTER, {"flush": "always"})
    assert refused.value.reason == "POLICY_INVALID"
    assert "set quiesce to one of" in str(refused.value)
    code, _, err = cli("policy", ADAPTER, "--set", "flush=always")
    assert code != 0
    assert "set quiesce to one of" in err
    code, after, _ = cli("policy", ADAPTER)
    assert code == 0
    assert after == before


def test_an_adapter_is_created_archived_and_deleted_from_the_command_line(cli):
    assert cli("create", "short-lived", "--set", "keep=4")[0] == 0
    code, _, err = cli("create", "short-lived")
    assert code != 0, "it is there already"
    assert "short-lived" in err
    code, out, _ = cli("archive", "short-lived")
    assert (code, "archived" in out) == (0, True)
    assert cli("archive", "short-lived", "--undo")[0] == 0
    code, out, err = cli("delete", "short-lived")
    assert code == 0, err
    assert "short-lived" not in cli("adapters")[1]


def test_the_end_of_a_pin_says_what_it_was_and_what_comes_next(steps, cli):
    assert cli("rollback", ADAPTER, str(steps.number))[0] == 0
    code, out, err = cli("rollback", ADAPTER, "--lift")
    assert code == 0, err
    assert f"{ADAPTER} in pool rollout is no longer pinned to r1.{steps.number}: it follows what is published again" in out
    assert "until the next publish" in out and "lorry status" in out, out
    assert "no longer pinned:" in cli("rollback", ADAPTER, "--lift")[1], "there was none"


def test_json_is_an_object_a_line_whatever_was_asked(steps, cli):
    """One shape for programs: `lorry VERB --json | while read -r line` works for every verb that answers."""
    newest = str(steps.number)
    asked = [
        ["status"], ["engines"], ["adapters"], ["versions", ADAPTER], ["policy", ADAPTER], ["doctor"],
        ["watch", "--once"], ["alias", ADAPTER, "shown", newest], ["alias", ADAPTER, "shown", "--remove"],
        ["rollback", ADAPTER, newest], ["rollback", ADAPTER, "--lift"],
        ["mark", KINDS[0], "included"], ["version"],
        ["lease", ADAPTER, newest], ["leases"], ["release", ADAPTER, newest],
    ]
    for said in asked:
        _, out, err = cli(*said, "--json")
        lines = out.splitlines()
        assert lines, f"{said} prints nothing: {err}"
        assert all(isinstance(json.loads(line), dict) for line in lines), said


def test_a_lease_says_when_its_version_may_be_used(world, steps, held_loads):
    for _ in range(2):  # until v1 has left the window
        held_loads()
        steps.next()
    until(lambda: all((1, 1) not in world.loaded(m) for m in KINDS), "v1 left")
    held_loads(True)
    leased = world.admin.lease(f"{ADAPTER}@1", "direct", ttl_s=600)
    assert (leased.number, leased.loaded, leased.members) == (1, 0, 2)
    assert not leased.ready
    held_loads()
    until(lambda: world.admin.lease(f"{ADAPTER}@1", "direct", ttl_s=600).ready, "both engines have v1")
    for member, kind in (("sglang", "SGLANG"), ("vllm", "VLLM")):
        assert leased.engine_names[kind] in EngineApi(world.engines[member]).listed()
    assert world.admin.release(f"{ADAPTER}@1", "direct") == 1
    assert world.admin.release(f"{ADAPTER}@1", "direct") == 0
    until(lambda: all((1, 1) not in world.loaded(m) for m in KINDS), "v1 left again")


def test_leases_from_the_command_line(world, steps, cli):
    """Taken, listed, renewed and released; a release leaves other holders' leases alone."""
    number = str(steps.number)
    code, out, err = cli("lease", ADAPTER, number, "--ttl", "20m", "--holder", "eval")
    assert code == 0, err
    names = {name for member in KINDS for name in EngineApi(world.engines[member]).listed()}
    assert any(name in out for name in names), f"no engine knows a name of this: {out}"
    assert "loaded on 2 of 2 engines" in out
    assert cli("lease", ADAPTER, "--holder", "another")[0] == 0
    listed = [json.loads(line) for line in cli("leases", ADAPTER, "--json")[1].splitlines()]
    assert [lease["holder"] for lease in listed] == ["another", "eval"]
    assert 19 * 60_000 < int(listed[1]["left_ms"]) <= 20 * 60_000
    assert "19 min" in cli("leases")[1]
    assert "1 lease of eval ended" in cli("release", ADAPTER, number, "--holder", "eval")[1]
    assert "leases nothing" in cli("release", ADAPTER, number, "--holder", "eval")[1]
    assert [lease["holder"] for lease in world.admin.status()["leases"]] == ["another"]
    assert cli("release", ADAPTER, "--holder", "another")[0] == 0
    assert "nothing is leased" in cli("leases")[1]
    code, _, err = cli("lease", ADAPTER, number, "--ttl", "0")
    assert code == 2, "a lease without a time is a wrong use"
    assert "release" in err


def test_a_release_by_the_adapter_ends_what_latest_was(world, steps):
    first = world.admin.lease(ADAPTER, "trainer", ttl_s=600)
    steps.next()
    assert world.admin.lease(ADAPTER, "trainer", ttl_s=600).number == first.number + 1
    assert world.admin.release(ADAPTER, "trainer") == 2


def test_a_late_retry_of_a_pin_changes_nothing(world, steps):
    def pin(number: int, request_id: str) -> int:
        version = adapter_pb2.VersionRef(adapter=ADAPTER, run=1, number=number)
        request = sync_pb2.SetOverrideRequest(adapter=ADAPTER, version=version, request_id=request_id)
        return connection.call(connection.sync.SetOverride, request).epoch

    connection = lorry.Connection(**world.fleet.addresses())
    steps.next()  # a pin needs one before it
    latest = world.latest()[1]
    try:
        epoch = pin(latest - 1, "first")
        pin(latest, "second")
        restart(world.fleet.orchestrator)
        assert pin(latest - 1, "first") == epoch
        assert pinned(world) == latest
        with pytest.raises(lorry.LorryError) as refused:
            pin(latest, "first")
        assert refused.value.reason == "REQUEST_ID_REUSED"
    finally:
        world.admin.rollback(ADAPTER, None)
        connection.close()


def test_slots_that_the_policies_ask_for_are_told_with_the_arithmetic(world, steps, cli):
    world.admin.set_policy(ADAPTER, {"keep": {"versions": 64}})
    until(lambda: world.member("vllm")["slot_need"].get("needed") == 65, "the orchestrator heard of the policy")
    assert "policy 64 kept + 1 next" in world.member("vllm")["slot_need"]["shortage"]
    _, out, _ = cli("status")
    assert "65 are needed (policy 64 kept + 1 next + 0 aliased + 0 leased)" in out
    assert "--max-cpu-loras" in out
    assert world.member("vllm")["slot_need"]["shortage"] in cli("doctor")[1]
    world.admin.set_policy(ADAPTER, {"keep": None})
    until(lambda: "shortage" not in world.member("vllm")["slot_need"], "it fits again")


@pytest.mark.parametrize("verb", [["status"], ["status", "--json"], ["engines"], ["watch", "--once"]])
def test_a_pool_that_nobody_names_is_no_empty_one(cli, steps, verb):
    code, out, err = cli(*verb, "--pool", "rolout")
    assert code == 1 and not out and "UNKNOWN_POOL" in err and "rolout, only rollout; did you mean rollout?" in err, (out, err)
    assert cli(*verb, "--pool", "rollout")[0] == 0


def test_the_status_of_an_adapter_that_nobody_has_is_refused(cli, steps):
    for words in ["status"], ["status", "--json"]:
        code, out, err = cli(*words, "--adapter", ADAPTER + "s")
        assert code == 1 and not out and "UNKNOWN_ADAPTER" in err and ADAPTER in err, (out, err)


def test_a_pin_in_a_pool_that_the_policy_does_not_name_is_refused(cli, steps):
    code, _, err = cli("rollback", ADAPTER, "1", "--pool", "rolout")
    assert code == 1 and "UNKNOWN_POOL" in err and f"the policy of {ADAPTER} names no pool rolout, only rollout" in err, err
    assert "--set pools=" in err, err


def test_a_policy_that_names_a_pool_without_an_engine_is_taken_and_told_what_may_be_meant(cli, steps):
    """Engines of the pool may come later."""
    said = "no engine is in pool rolout, only in rollout; did you mean rollout?"
    try:
        code, _, err = cli("create", "misplaced", "--set", "pools=rolout")
        assert code == 0 and err == f"lorry: {said}\n", err
        code, _, err = cli("policy", "misplaced", "--set", "keep=2")
        assert code == 0 and err == f"lorry: {said}\n", err
        assert cli("policy", "misplaced")[::2] == (0, ""), "who only looks is told nothing"
        until(lambda: f"! misplaced: {said}" in cli("status")[1], "status says so as long as it lasts")
        code, _, err = cli("policy", "misplaced", "--set", "pools=rollout")
        assert code == 0 and not err, err
    finally:
        cli("delete", "misplaced")


def test_whoever_watches_a_pool_that_may_come_is_told_so(words):
    watch = subprocess.Popen(words("watch", "--pool", "tomorrow"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        said = watch.stderr.readline()
        assert "no engine and no policy names a pool tomorrow, only rollout" in said, said
    finally:
        watch.terminate()
        watch.wait(DEADLINE_S)


def test_where_several_pools_may_be_meant_none_is_guessed(world, cli, make_adapter):
    """The last of this module: its second adapter takes slots."""
    assert cli("create", "twins", "--set", "pools=canary,rollout")[0] == 0
    code, _, err = cli("publish", make_adapter(1), "--adapter", "twins", "--wait", "serving", "--pool", "rollout")
    assert code == 0, err
    for said in ["rollback", "twins", "1"], ["rollback", "twins", "--lift"], ["alias", "twins", "now", "latest"]:
        code, out, err = cli(*said)
        assert code == 2 and "the pools canary and rollout: say which one is meant by --pool" in err, (said, out, err)
    assert not any("override" in pool for pool in world.admin.status()["pools"])
    assert cli("alias", "twins", "now", "latest", "--pool", "rollout")[1].startswith("twins@now is r1.1,")
    assert "twins in pool rollout is pinned to v1;" in cli("rollback", "twins", "1", "--pool", "rollout")[1]
    assert "twins in pool rollout is no longer pinned to r1.1:" in cli("rollback", "twins", "--lift", "--pool", "rollout")[1]
    assert cli("policy", "twins", "--set", "pools=eval=@now,rollout")[0] == 0
    assert json.loads(cli("rollback", "twins", "latest", "--json")[1])["pool"] == "rollout"
    assert cli("rollback", "twins", "--lift")[0] == 0


def pinned(world) -> int:
    """The number that the pool is pinned to; 0: none."""
    return next((int(p["override"]["number"]) for p in world.admin.status()["pools"] if "override" in p), 0)
