"""What the `lorry` command promises of itself. A store, an orchestrator where one is asked, and no engine."""

import contextlib
import json
import os
import stat
import subprocess
from concurrent import futures

import grpc
import lorry
import pytest
from lorry.sync.v1 import sync_pb2
from testing.engines import free_port
from testing.fleet import Service
from testing.waiting import DEADLINE_S

FAR = "192.0.2.1"  # of the range that is for documentation


@pytest.fixture(scope="module")
def store(bin_dir, tmp_path_factory):
    """Its address."""
    address = f"127.0.0.1:{free_port()}"
    service = Service(bin_dir / "adapter-store", "store", tmp_path_factory.mktemp("store"), {"listen": address, "ucx": "false"})
    try:
        service.start().wait_ready()
        yield address
    finally:
        service.stop()


@pytest.fixture
def orchestrator(bin_dir, store, tmp_path):
    """Its service, and its address."""
    address = f"127.0.0.1:{free_port()}"
    service = Service(bin_dir / "sync-orchestrator", "orchestrator", tmp_path / "orchestrator", {"listen": address, "store": store})
    try:
        yield service.start().wait_ready(), address
    finally:
        service.stop()


@pytest.fixture
def cli(bin_dir, store):
    """cli("status"): the program's exit code, stdout and stderr; names in capitals are of the environment."""

    def run(*words, before=(), **options):
        env = os.environ | {"LORRY_STORE": store} | {name: options.pop(name) for name in list(options) if name.isupper()}
        kept = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        done = subprocess.run([*before, bin_dir / "lorry", *words], env=env, text=True, timeout=DEADLINE_S, check=False, **kept)
        return done.returncode, done.stdout, done.stderr

    return run


def test_the_next_number_is_one_that_the_store_takes(store, cli, make_adapter):
    def publish_next(step):
        code, out, err = cli("publish", make_adapter(step), "--adapter", "counted")
        assert code == 0, err
        return out.partition(",")[0].rpartition(" ")[2]

    assert [publish_next(step) for step in (1, 2)] == ["r1.1", "r1.2"]
    assert cli("delete", "counted", "2")[0] == 0
    assert publish_next(3) == "r1.3", "the number of what was deleted stays taken"
    lorry.open_run("counted", resume_from=3, store=store).close()
    assert publish_next(4) == "r2.4"


def test_a_policy_of_nobody_creates_no_adapter(cli):
    code, _, err = cli("policy", "misspelt", "--set", "keep=3")
    assert code == 1 and "UNKNOWN_ADAPTER" in err and "`lorry create` makes a new one" in err, err
    assert "misspelt" not in cli("adapters")[1]


@pytest.mark.parametrize("words", [["publish", "."], ["import", "./policy-v1"]])
def test_what_cannot_be_published_opens_no_run(store, cli, make_adapter, tmp_path, words):
    """A run that is opened creates an adapter, or fences the trainer that has the one before."""
    verb, directory = words[0], tmp_path / words[1]
    directory.mkdir(exist_ok=True)
    (directory / "adapter_config.json").write_text("{}")
    (directory / "adapter_model.safetensors").write_bytes(b"no tensors")
    name = f"unread-{verb}"
    code, _, err = cli(verb, directory, "--adapter", name)
    assert code == 1 and name not in cli("adapters")[1], err
    with lorry.open_run(name, store=store) as run:
        run.publish(make_adapter(1), version=1).wait("stored", DEADLINE_S)
        assert cli(verb, directory, "--adapter", name, "--run", "new")[0] == 1
        if verb == "publish":
            assert cli(verb, make_adapter(2), "--adapter", name, "--run", "new", "--version", "2nd")[0] == 2
        run.publish(make_adapter(2), version=2).wait("stored", DEADLINE_S)


def test_output_that_is_lost_is_no_success(cli):
    with open("/dev/full", "w") as full:
        for words in ["adapters"], ["help"]:
            code, _, err = cli(*words, stdout=full)
            assert code == 1 and "standard output cannot be written: No space left on device" in err, (words, err)


def test_a_slip_is_told_to_programs_as_json(cli):
    code, out, err = cli("status", "--json", "--bogus")
    said = json.loads(err)
    assert code == 2 and not out and said["reason"] == "USAGE" and "--bogus" in said["message"] and said["remedy"], said


def test_a_folder_that_cannot_be_told_is_refused(cli, tmp_path):
    code, _, err = cli("up", "--data-dir", os.fsencode(tmp_path) + b"/\xff")
    assert code == 1 and "DATA_DIR_UNUSABLE" in err and "UTF-8" in err, err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_fleet_of_another_user_is_named(cli, store, tmp_path):
    token, file = tmp_path / "run" / "token", tmp_path / "lorry" / "up.json"
    for path, text in (token, "secret"), (file, json.dumps({"pid": os.getpid(), "store": store, "token_file": str(token)})):
        path.parent.mkdir()
        path.write_text(text)
    token.chmod(0)
    without = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    code, _, err = cli("adapters", before=without, XDG_STATE_HOME=str(tmp_path))
    assert code == 1 and "TOKEN_UNREADABLE" in err and f"{file} names the fleet of {store}" in err, err
    assert f"its token {token} cannot be read: Permission denied" in err and "--token-file" in err, err
    assert cli("adapters", "--token-file", os.devnull, before=without, XDG_STATE_HOME=str(tmp_path))[0] == 0


def test_an_export_can_be_read_by_whoever_may_read_its_config(cli, make_adapter, tmp_path):
    assert cli("publish", make_adapter(1), "--adapter", "shared")[0] == 0
    code, _, err = cli("export", "shared", tmp_path / "out", umask=0o027)
    assert code == 0, err
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "out").iterdir()}
    assert modes == {"adapter_config.json": 0o640, "adapter_model.safetensors": 0o640}


def test_what_was_stored_is_said_before_what_went_wrong(cli, make_adapter):
    words = ["publish", make_adapter(1), "--adapter", "said", "--wait", "serving"]
    code, said, _ = cli(*words, stderr=subprocess.STDOUT, LORRY_ORCHESTRATOR="")
    assert code == 1 and 0 <= said.find("stored said r1.1") < said.find("NO_ADDRESS"), said


@pytest.mark.parametrize(("flag", "scheme"), [("store", "http://"), ("orchestrator", "https://")])
def test_an_address_has_no_scheme(cli, store, flag, scheme):
    code, _, err = cli("adapters", f"--{flag}={scheme}{store}")
    assert code == 2 and f"(--{flag}) is host:port; leave {scheme} out" in err, err


def test_a_pool_that_no_policy_names_stores_nothing(cli, make_adapter):
    words = ["publish", make_adapter(1), "--adapter", "pooled", "--pool", "rolout"]
    code, _, err = cli(*words)
    assert code == 1 and "UNKNOWN_POOL" in err and "names no pool rolout, only rollout; did you mean rollout?" in err, err
    assert "pooled" not in cli("adapters")[1]
    assert cli("create", "pooled", "--set", "pools=eval")[0] == 0
    assert "names no pool rollout, only eval" in cli(*words[:-1], "rollout", "--wait", "serving")[2]
    assert cli(*words[:-1], "eval")[0] == 0
    assert "r1.1" in cli("versions", "pooled")[1]


@contextlib.contextmanager
def listener(answer):
    """(address, the metadata of each call) of who gives every call this answer."""
    shown = []

    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            shown.append(dict(details.invocation_metadata))
            return grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)

    with futures.ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, [Handler()])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield address, shown
        finally:
            server.stop(None).wait()


def write_up_file(folder, **fields):
    (folder / "lorry").mkdir()
    (folder / "token").write_text("of-up")
    up = {"pid": os.getpid(), "store": f"{FAR}:1", "orchestrator": f"{FAR}:2", "token_file": str(folder / "token")}
    (folder / "lorry" / "up.json").write_text(json.dumps(up | fields))


def test_two_fleets_are_never_mixed(cli, store, tmp_path):
    write_up_file(tmp_path)
    code, _, err = cli("rollback", "policy", "11", "--pool", "rollout", XDG_STATE_HOME=str(tmp_path))
    assert code == 1 and "NO_ADDRESS" in err and f"is not the fleet of {store}" in err and "sync-orchestrator" in err, err
    code, _, err = cli("adapters", "--orchestrator", f"{FAR}:3", LORRY_STORE="", XDG_STATE_HOME=str(tmp_path))
    assert code == 1 and "NO_ADDRESS" in err and f"is not the fleet of {FAR}:3" in err and "adapter-store" in err, err


def test_no_other_fleet_is_shown_the_token(cli, store, tmp_path):
    with listener(b"") as (address, shown):
        write_up_file(tmp_path, store=store, orchestrator=address)
        assert cli("status", XDG_STATE_HOME=str(tmp_path))[0] == 0
        assert shown[-1]["authorization"] == "Bearer of-up"
    with listener(b"") as (other, shown):
        for named in store, "":
            assert cli("status", "--orchestrator", other, LORRY_STORE=named, XDG_STATE_HOME=str(tmp_path))[0] == 0
            assert shown and not any("authorization" in metadata for metadata in shown), named


@pytest.mark.parametrize("text", ['{"pid": %d, "engines": [{"member": 5}, 6], "data_dir": 7}', '{"pid": %d, "engines": "x"}', "[%d]", '"x"'])
def test_a_broken_file_of_lorry_up_is_in_nobodys_way(cli, bin_dir, tmp_path, text):
    (tmp_path / "lorry").mkdir()
    (tmp_path / "lorry" / "up.json").write_text(text % os.getpid() if "%d" in text else text)
    code, _, err = cli("adapters", XDG_STATE_HOME=str(tmp_path))
    assert code == 0, err
    with subprocess.Popen([bin_dir / "lorry", "up", "--json"], env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
                          stdout=subprocess.PIPE, text=True) as fleet:
        assert json.loads(fleet.stdout.readline())["store"]
        fleet.terminate()
    assert fleet.returncode == 0


def test_a_watch_outlives_a_restart_of_the_orchestrator(bin_dir, orchestrator, tmp_path):
    service, address = orchestrator
    with (tmp_path / "errors").open("w") as errors:
        watch = subprocess.Popen([bin_dir / "lorry", "watch", "--json", "--orchestrator", address, "--timeout", "60s"], stdout=subprocess.PIPE,
                                 stderr=errors, text=True, restore_signals=False)  # it ignores SIGPIPE, as under some supervisors
    try:
        heard = -1
        for end in service.stop, service.kill, None:
            before = heard
            while heard == before:  # what the reign before said may lie in the pipe yet
                heard = json.loads(watch.stdout.readline())["term"]
            if end is not None:
                end()
                service.start().wait_ready()
        said = (tmp_path / "errors").read_text()
        assert said.count("dialling again") == 2, said
        watch.stdout.close()
        service.kill()
        service.start().wait_ready()
        assert watch.wait(DEADLINE_S) == 1, "whoever read it is gone"
        assert "standard output cannot be written" in (tmp_path / "errors").read_text()
    finally:
        watch.kill()
        watch.wait()


def test_leases_of_what_there_is_not(cli, orchestrator):
    _, address = orchestrator
    assert cli("create", "leased")[0] == 0
    for words, reason in (["nix"], "UNKNOWN_ADAPTER"), (["--pool", "nix"], "UNKNOWN_POOL"):
        code, _, err = cli("leases", *words, "--orchestrator", address)
        assert code == 1 and reason in err, err
    assert cli("leases", "leased", "--orchestrator", address)[:2] == (0, "nothing is leased\n")


def test_what_was_there_is_not_created(cli):
    assert cli("create", "twice")[1] == "twice is created\n"
    assert cli("create", "twice")[:2] == (0, "twice was there already, with this policy\n")


def test_no_verb_is_a_slip(cli):
    for words in [], ["--json"], ["--no-colour"]:
        assert cli(*words)[0] == 2, words
    assert cli("--json", "--help")[0] == 0


def test_an_engine_is_named_once(cli):
    port = free_port()
    code, _, err = cli("up", "--engine", str(port), "--engine", f"localhost:{port}")
    assert code == 2 and f":{port} and --engine=http://localhost:{port} are both engine-{port}" in err, err


def test_a_reason_that_is_no_text_is_refused(cli):
    code, _, err = cli("mark", "e", "dead", "--reason", b"\xff")
    assert code == 2 and "USAGE" in err and "--reason is no UTF-8" in err, err


def test_what_a_member_says_of_itself_obeys_no_terminal(cli):
    member = sync_pb2.MemberStatus(member="e", door_address="http://e\x1b[2J\x9b2J")
    with listener(sync_pb2.GetStatusResponse(members=[member]).SerializeToString()) as (address, _):
        code, out, err = cli("detach", "--orchestrator", address)
    assert code == 0 and "http://e\\x1b[2J\\u009b2J" in out, out + err
