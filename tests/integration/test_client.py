"""What the Python client promises of itself: credentials, adapters' policies, errors. A store, and no engine."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import ssl
import subprocess
import sys
import time

import grpc
import lorry
import lorry.on_the_way
import pytest
from lorry.collectives import Ranks
from lorry.credentials import Credentials
from lorry.reach import check_tls
from lorry.run import Run
from lorry.sync.v1 import sync_pb2, sync_pb2_grpc
from testing import certificates
from testing.engines import free_port
from testing.fleet import Fleet, Service
from testing.forwarder import Forwarder
from testing.waiting import DEADLINE_S, until

ADAPTER = "math-policy"


@contextlib.contextmanager
def a_store(bin_dir, folder, **flags):
    """An adapter-store alone, reached by the name that its certificate holds; yields its port."""
    port = free_port()
    flags = {"listen": f"127.0.0.1:{port}", "ucx": "false", **flags}
    store = Service(bin_dir / "adapter-store", "store", folder, flags)
    try:
        store.start().wait_ready()
        yield port
    finally:
        store.stop()


def make_certs(folder):
    """An authority, the server's certificate, and what a publisher shows and trusts."""
    ca = certificates.authority(folder)
    certificates.signed(ca, "server", "DNS:localhost")
    cert, key = certificates.signed(ca, "publisher", "URI:spiffe://lorry/role/operator")
    return {"ca_file": str(ca), "cert_file": str(cert), "key_file": str(key)}


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    """The authority, a publisher's certificate and key."""
    return make_certs(tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="module")
def tls_port(bin_dir, certs, tmp_path_factory):
    """A store that asks for client certificates."""
    folder = pathlib.Path(certs["ca_file"]).parent
    tls = {"tls-cert": folder / "server.pem", "tls-key": folder / "server.key", "tls-client-ca": certs["ca_file"]}
    with a_store(bin_dir, tmp_path_factory.mktemp("tls"), **tls) as port:
        yield port


@pytest.fixture(scope="module")
def fleet(bin_dir, tmp_path_factory):
    """Store and orchestrator that no engine attaches to."""
    with Fleet(bin_dir, tmp_path_factory.mktemp("fleet"), {}) as made:
        yield made


# --- TLS and tokens ---


def test_a_mover_shows_the_trainers_own_certificate(tls_port, certs, large, bin_dir, monkeypatch, caplog):
    monkeypatch.setenv("LORRY_MOVER", str(bin_dir / "lorry"))
    with lorry.open_run("moved", store=f"localhost:{tls_port}", **certs) as run:
        run.publish(large.state, config=large.config, version=1, progress=False).wait("stored", 60)
        assert len(run._movers._idle) == 1, "it is there for the next one"
    assert not caplog.records


def test_a_trainer_with_a_client_certificate_publishes(tls_port, certs, make_adapter):
    with lorry.open_run(ADAPTER, store=f"localhost:{tls_port}", **certs) as run:
        run.publish(make_adapter(1), version=1).wait("stored", 60)
    with lorry.Admin(f"localhost:{tls_port}", **certs) as admin:
        assert [v.number for v in admin.versions(ADAPTER)] == [1]


def test_the_environment_names_the_same_files(tls_port, certs, monkeypatch):
    for name, path in certs.items():
        monkeypatch.setenv(f"LORRY_{name.upper()}", path)
    monkeypatch.setenv("LORRY_STORE", f"localhost:{tls_port}")
    lorry.open_run("by-environment").close()


@pytest.mark.parametrize(("host", "leave_out", "hint"), [
    ("127.0.0.1", (), "IP address mismatch.*Dial a name that the certificate holds"),
    ("localhost", ("cert_file", "key_file"), "to ask for a client certificate; give cert_file"),
    ("localhost", ("ca_file", "cert_file", "key_file"), "speaks TLS: give ca_file"),
])
def test_what_no_patience_mends_is_said_at_once(tls_port, certs, host, leave_out, hint):
    shown = {k: v for k, v in certs.items() if k not in leave_out}
    with pytest.raises(lorry.LorryError, match=hint) as failure:
        lorry.open_run(ADAPTER, store=f"{host}:{tls_port}", **shown)
    assert failure.value.reason == "TLS_FAILED"


def test_a_foreign_authority_is_named_as_such(tls_port, certs, tmp_path):
    foreign = certs | {"ca_file": str(certificates.authority(tmp_path / "foreign"))}
    with pytest.raises(lorry.LorryError, match="is not trusted.*authority that signed it"):
        lorry.open_run(ADAPTER, store=f"localhost:{tls_port}", **foreign)


@pytest.mark.parametrize("trusted", ["ca.pem", "server.pem"])
def test_what_grpc_can_use_is_no_failure_of_tls(tls_port, certs, monkeypatch, trusted):
    """Else a restart of the store would end a training. Python 3.13 asks for more in certificates than gRPC does, and any Python for
    the whole chain: here an authority without key usage, and a server's certificate that is trusted by itself."""
    def strict(*arguments, own=ssl.create_default_context, **named):
        context = own(*arguments, **named)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    shown = certs | {"ca_file": str(pathlib.Path(certs["ca_file"]).with_name(trusted))}
    lorry.open_run(f"trusts-{trusted}", store=f"localhost:{tls_port}", **shown).close()
    check_tls(f"localhost:{tls_port}", Credentials(**shown))


def test_a_trainer_goes_on_with_certificates_that_were_renewed(bin_dir, tmp_path, make_adapter):
    """Here the authority, too: nothing that the trainer dialled with at first is of use any more."""
    folder = tmp_path / "certs"
    shown = make_certs(folder)
    port = free_port()
    flags = {"listen": f"127.0.0.1:{port}", "ucx": "false", "tls-client-ca": folder / "ca.pem"}
    flags |= {"tls-cert": folder / "server.pem", "tls-key": folder / "server.key"}
    store = Service(bin_dir / "adapter-store", "store", tmp_path / "store", flags)
    try:
        store.start().wait_ready()
        with lorry.open_run(ADAPTER, store=f"localhost:{port}", **shown) as run:
            run.publish(make_adapter(1), version=1).wait("stored", DEADLINE_S)
            store.stop()
            make_certs(folder)
            store.start().wait_ready()
            run.publish(make_adapter(2), version=2).wait("stored", DEADLINE_S)
    finally:
        store.stop()


def test_tls_to_a_store_in_plaintext_is_said_at_once(fleet, certs):
    with pytest.raises(lorry.LorryError, match="speaks plaintext") as failure:
        lorry.open_run(ADAPTER, store=fleet.addresses()["store"], **certs)
    assert failure.value.reason == "TLS_FAILED"


@pytest.fixture(scope="module")
def expired(bin_dir, tmp_path_factory):
    """A store whose certificate has expired: its address, and the authority that signed it."""
    folder = tmp_path_factory.mktemp("expired")
    ca = certificates.authority(folder)
    cert, key = certificates.signed(ca, "server", "DNS:localhost", days=-1)
    with a_store(bin_dir, folder / "store", **{"tls-cert": cert, "tls-key": key}) as port:
        yield f"localhost:{port}", str(ca)


def test_an_expired_certificate_is_named_as_such(expired):
    address, ca = expired
    with pytest.raises(lorry.LorryError, match="has expired. Renew it") as failure:
        lorry.open_run(ADAPTER, store=address, ca_file=ca)
    assert failure.value.reason == "TLS_FAILED"


def test_the_command_line_says_why_tls_fails(bin_dir, tls_port, certs, fleet, expired, tmp_path):
    here, plain = f"localhost:{tls_port}", fleet.addresses()["store"]
    ca, mine = {"LORRY_CA_FILE": certs["ca_file"]}, {f"LORRY_{name.upper()}": path for name, path in certs.items()}
    foreign = {"LORRY_CA_FILE": str(certificates.authority(tmp_path / "foreign"))}
    for store, shown, hint in (
        (here, {}, "speaks TLS: give --tls-ca"),
        (here, ca, "ask for a client certificate; give --tls-cert"),
        (here, mine | foreign, "Give the authority that signed it as --tls-ca"),
        (f"127.0.0.1:{tls_port}", mine, "Dial a name that the certificate holds"),
        (plain, ca, "speaks plaintext: leave --tls-ca"),
        (expired[0], {"LORRY_CA_FILE": expired[1]}, "has expired. Renew it"),
    ):
        for words in ["adapters"], ["adapters", "--timeout", "1s"], ["doctor"]:
            said = command_line(bin_dir, *words, LORRY_STORE=store, **shown)
            assert hint in said and ("TLS_FAILED" in said or words == ["doctor"]), (words, said)


def test_nobody_at_an_address_is_said_by_the_exit_status_also_after_a_wait(bin_dir):
    for words in ["adapters"], ["adapters", "--timeout", "500ms"]:
        done = subprocess.run([bin_dir / "lorry", *words], env=os.environ | {"LORRY_STORE": f"127.0.0.1:{free_port()}"}, text=True,
                              capture_output=True, timeout=60, check=False)
        assert done.returncode == 3 and "not answer" in done.stderr and "`lorry doctor`" in done.stderr, (words, done)


def test_the_end_of_a_certificate_is_seen_before_it_comes(bin_dir, tls_port, certs, tmp_path):
    """By `lorry doctor`, and in the metrics of whoever serves or dials by one."""
    mine = {f"LORRY_{name.upper()}": path for name, path in certs.items()}
    said = command_line(bin_dir, "doctor", LORRY_STORE=f"localhost:{tls_port}", **mine)
    for whose in "of the adapter-store", f"in {certs['ca_file']}", f"in {certs['cert_file']}":
        assert re.search(f"! the certificate {re.escape(whose)} ends in (2 days|47 hours)", said), said
    assert "replace its --tls-cert and --tls-key" in said, said

    folder = pathlib.Path(certs["ca_file"]).parent
    tls = {"tls-cert": folder / "server.pem", "tls-key": folder / "server.key", "tls-client-ca": certs["ca_file"]}
    dials = {**tls, "tls-ca": certs["ca_file"], "store": f"localhost:{tls_port}"}
    of_server = {"tls-cert", "tls-client-ca"}
    for program, flags, shown in (
        ("adapter-store", {"ucx": "false", **tls}, of_server),
        ("sync-orchestrator", dials, of_server | {"tls-ca"}),
        ("engine-proxy", {"engine": f"http://127.0.0.1:{free_port()}", "orchestrator": f"localhost:{free_port()}", "member": "m",
                          "image-dir": tmp_path / "images", **dials}, of_server | {"tls-ca"}),
    ):
        service = Service(bin_dir / program, program, tmp_path / program, flags)
        try:
            metrics = service.start().wait_ready().metrics()
        finally:
            service.stop()
        ends = dict(re.findall(r'^lorry_certificate_expiry_timestamp_seconds\{flag="([a-z-]+)"\} (\d+)', metrics, re.MULTILINE))
        assert set(ends) == shown, program
        assert all(0 < int(end) - time.time() < 2 * 86400 for end in ends.values()), ends


def test_a_token_from_a_file_is_shown_and_may_rotate(bin_dir, tmp_path):
    tokens, mine = tmp_path / "tokens", tmp_path / "mine"
    tokens.write_text("operator first-token-of-16\noperator second-token-of-16\n")
    mine.write_text("first-token-of-16\n")
    with a_store(bin_dir, tmp_path / "store", **{"auth-token-file": tokens}) as port:
        with lorry.Admin(f"127.0.0.1:{port}", token_file=str(mine)) as admin:
            admin.set_policy(ADAPTER, {})
            mine.write_text("second-token-of-16\n")
            admin.set_policy(ADAPTER, {})
            mine.write_text("third-token-of-16\n")
            with pytest.raises(lorry.LorryError) as failure:
                admin.set_policy(ADAPTER, {})
            assert failure.value.code == "UNAUTHENTICATED"


def test_the_command_line_takes_the_same_variables(bin_dir, tls_port, certs, tmp_path):
    lorry.open_run("by-command", store=f"localhost:{tls_port}", **certs).close()
    names = {f"LORRY_{name.upper()}": path for name, path in certs.items()}
    assert "by-command" in command_line(bin_dir, "adapters", LORRY_STORE=f"localhost:{tls_port}", **names)
    tokens, mine = tmp_path / "tokens", tmp_path / "mine"
    tokens.write_text("operator first-token-of-16\n")
    mine.write_text("first-token-of-16\n")
    with a_store(bin_dir, tmp_path / "store", **{"auth-token-file": tokens}) as port:
        at = {"LORRY_STORE": f"127.0.0.1:{port}"}
        assert "UNAUTHENTICATED" in command_line(bin_dir, "adapters", **at)
        for shown in ({"LORRY_TOKEN": "first-token-of-16"}, {"LORRY_TOKEN_FILE": str(mine)}):
            assert "UNAUTHENTICATED" not in command_line(bin_dir, "adapters", **at, **shown)


def command_line(bin_dir, *words, **environment):
    """What `lorry` prints, errors too."""
    done = subprocess.run([bin_dir / "lorry", *words], env=os.environ | environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60, check=False)
    return done.stdout


# --- Adapters and versions ---


def test_a_policy_changes_by_fields(fleet):
    with lorry.Admin(**fleet.addresses()) as admin:
        admin.set_policy("fields", {"max_staleness": 3, "stage_deadline_ms": 4000})
        assert admin.set_policy("fields", {"mode": "rolling", "stage_deadline_ms": None}) == {"max_staleness": 3, "mode": "rolling"}
        assert admin.policy("fields") == {"max_staleness": 3, "mode": "rolling"}
        assert admin.set_policy("fields", {"keep": 2}, replace=True) == {"keep": 2}
        with pytest.raises(lorry.LorryError, match="POLICY_INVALID.*did you mean keep"):
            admin.set_policy("fields", {"keeep": 2})


def test_a_version_is_deleted_by_its_number(bin_dir, tmp_path, make_adapter):
    with a_store(bin_dir, tmp_path) as port, lorry.Admin(f"127.0.0.1:{port}") as admin:
        with lorry.open_run(ADAPTER, store=f"127.0.0.1:{port}") as run:
            for number in (1, 2):
                run.publish(make_adapter(number), version=number).wait("stored", 60)
        admin.delete(ADAPTER, 1)
        assert [v.number for v in admin.versions(ADAPTER)] == [2]


def test_an_adapter_is_created_archived_and_deleted(bin_dir, tmp_path, make_adapter):
    with a_store(bin_dir, tmp_path) as port, lorry.Admin(f"127.0.0.1:{port}") as admin:
        admin.create(ADAPTER, {"keep": 2})
        admin.create(ADAPTER)
        assert admin.policy(ADAPTER) == {"keep": 2}
        with lorry.open_run(ADAPTER, store=f"127.0.0.1:{port}") as run:
            run.publish(make_adapter(1), version=1).wait("stored", 60)
        admin.archive(ADAPTER)
        assert [(a.name, a.run, a.versions, a.archived) for a in admin.adapters()] == [(ADAPTER, 1, 1, True)]
        admin.archive(ADAPTER, archived=False)
        with pytest.raises(lorry.LorryError, match="ADAPTER_NOT_EMPTY"):
            admin.delete_adapter(ADAPTER)
        admin.delete_adapter(ADAPTER, with_versions=True)
        assert admin.adapters() == []


# --- The command line ---


def test_a_publish_with_a_timeout_waits_for_a_store_that_is_away(bin_dir, tmp_path, make_adapter):
    with a_store(bin_dir, tmp_path) as port, Forwarder(f"127.0.0.1:{port}") as wire:
        wire.cut()
        publish = [bin_dir / "lorry", "publish", make_adapter(1), "--adapter", ADAPTER, "--version", "1", "--store", wire.address]
        at_once = subprocess.run(publish, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert at_once.returncode != 0
        assert wire.address in at_once.stderr
        gave_up_after = wire.refused
        with subprocess.Popen([*publish, "--timeout", f"{DEADLINE_S:.0f}s"], stdout=subprocess.PIPE, text=True) as patient:
            until(lambda: patient.poll() is not None or wire.refused > 2 * gave_up_after, "it tries where the other had given up")
            assert patient.poll() is None
            wire.heal()
            patient.communicate(timeout=DEADLINE_S)
        assert patient.returncode == 0
        with lorry.Admin(f"127.0.0.1:{port}") as admin:
            assert [v.number for v in admin.versions(ADAPTER)] == [1]


# --- The end of a run, or of the process ---


def test_the_end_of_a_run_waits_for_what_is_on_its_way(bin_dir, tmp_path, make_adapter, monkeypatch, caplog):
    monkeypatch.setattr(lorry.on_the_way, "SAID_AFTER_S", 0.05)
    with a_store(bin_dir, tmp_path) as port, Forwarder(f"127.0.0.1:{port}") as wire, concurrent.futures.ThreadPoolExecutor(1) as other:
        with lorry.open_run(ADAPTER, store=wire.address) as run:
            wire.cut()
            handle = run.publish(make_adapter(1), version=1)
            healed = other.submit(lambda: (until(lambda: "waits for" in caplog.text, "the block ends"), wire.heal()))
        healed.result()
        assert handle.done() and handle.digest


@pytest.mark.parametrize(("left_by", "is_stored"), [(None, True), (SystemExit(0), True), (SystemExit(1), False), (KeyError("x"), False)])
def test_an_exception_that_ends_a_run_cancels_what_is_on_its_way(bin_dir, tmp_path, make_adapter, left_by, is_stored):
    with a_store(bin_dir, tmp_path) as port, Forwarder(f"127.0.0.1:{port}") as wire:
        with contextlib.ExitStack() as caught:
            if left_by is not None:
                caught.enter_context(pytest.raises(type(left_by)))
            with lorry.open_run(ADAPTER, store=wire.address) as run:
                if not is_stored:
                    wire.cut()
                handle = run.publish(make_adapter(1), version=1)
                if left_by is not None:
                    raise left_by
        with pytest.raises(lorry.Cancelled) if not is_stored else contextlib.nullcontext():
            handle.wait("stored", DEADLINE_S)


SCRIPT = """
import sys, lorry, lorry.on_the_way
lorry.on_the_way.END_PATIENCE_S = 1e9
run = lorry.open_run("script", store=sys.argv[1])
print("opened", flush=True)
sys.stdin.readline()
run.publish(sys.argv[2], version=1)
print("published", flush=True)
"""


@contextlib.contextmanager
def a_script(bin_dir, folder, adapter, last_line):
    """One that publishes to a store that goes away before, and has come to its last line; the process, the wire, the store's port."""
    with a_store(bin_dir, folder) as port, Forwarder(f"127.0.0.1:{port}") as wire:
        words = [sys.executable, "-c", SCRIPT + last_line, wire.address, adapter]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as script:
            try:
                assert script.stdout.readline() == "opened\n"
                wire.cut()
                script.stdin.write("\n")
                script.stdin.flush()
                assert script.stdout.readline() == "published\n"
                yield script, wire, port
            finally:
                script.kill()


def test_a_script_that_ends_after_its_last_publish_loses_nothing(bin_dir, tmp_path, make_adapter):
    with a_script(bin_dir, tmp_path, make_adapter(1), "") as (script, wire, port):
        refused = wire.refused
        until(lambda: wire.refused > refused, "it tries, though the script has ended")
        wire.heal()
        assert script.wait(DEADLINE_S) == 0
        with lorry.Admin(f"127.0.0.1:{port}") as admin:
            assert [v.number for v in admin.versions("script")] == [1]


def test_a_script_that_fails_does_not_wait_and_says_what_is_lost(bin_dir, tmp_path, make_adapter):
    with a_script(bin_dir, tmp_path, make_adapter(1), "raise KeyError") as (script, _, _):
        _, said = script.communicate(timeout=DEADLINE_S)
        assert script.returncode == 1
        assert "script r1.1 was not stored when the process ended" in said, said


# --- What an error says ---


def test_serving_is_not_claimed_where_nothing_serves(fleet, make_adapter):
    with lorry.open_run("unserved", **fleet.addresses()) as run:
        handle = run.publish(make_adapter(1), version=1)
        handle.wait("stored", 60)
        with pytest.raises(lorry.SyncFailed, match="no engine serves it") as failure:
            handle.wait("serving", 60)
        assert failure.value.reason == "TOO_FEW_ENGINES"


def test_an_attempt_that_another_replaced_is_not_a_run_that_is_over(fleet, make_adapter):
    connection = lorry.Connection(**fleet.addresses())
    with lorry.open_run("attempts", **fleet.addresses()) as run:
        new = Run(connection, run.adapter, run.number, 2_000, Ranks())
        old = Run(connection, run.adapter, run.number, 1_000, Ranks())
        config = json.loads((make_adapter(1) / "adapter_config.json").read_text())
        half = {name: lorry.Shard(t[: t.shape[0] // 2], tuple(t.shape), (0, 0)) for name, t in tensors(make_adapter(1)).items()}
        begun = new.publish(half, config=config, version=1)
        until(lambda: begun.bytes_done == begun.bytes_total, "the store has its half; the other never comes")
        with pytest.raises(lorry.AttemptFenced):
            old.publish(make_adapter(1), version=1).wait("stored", 60)
        begun.cancel()
        new.publish(make_adapter(2), version=2).wait("stored", 60)
    connection.close()


def test_a_number_that_is_published_again_has_nothing_of_what_was_sent_before(fleet, make_adapter):
    """As by a trainer whose step failed half-way and is done again."""
    config = json.loads((make_adapter(1) / "adapter_config.json").read_text())
    half = {name: lorry.Shard(t[: t.shape[0] // 2], tuple(t.shape), (0, 0)) for name, t in tensors(make_adapter(1)).items()}
    whole = tensors(make_adapter(2))
    with lorry.open_run("expected", **fleet.addresses()) as run:
        expected = run.publish(whole, config=config, version=1)
        expected.wait("stored", 60)
    with lorry.open_run("again", **fleet.addresses()) as run:
        first = run.publish(half, config=config, version=1)
        until(lambda: first.bytes_done == first.bytes_total, "the store has the first half")
        with pytest.raises(TimeoutError):
            first.wait("stored", 0.1)
        second = run.publish(whole, config=config, version=1)
        second.wait("stored", 60)
        assert second.digest == expected.digest
        with pytest.raises(lorry.AttemptFenced):
            first.wait("stored", 60)
        repeated = run.publish(whole, config=config, version=1)
        repeated.wait("stored", 60)
        assert repeated.digest == expected.digest
        with pytest.raises(lorry.VersionConflict, match="publish the next number"):
            run.publish(tensors(make_adapter(3)), config=config, version=1).wait("stored", 60)


def tensors(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "adapter_model.safetensors")


def test_a_timeout_says_once_what_is_missing(fleet, make_adapter):
    with lorry.open_run("late", **fleet.addresses()) as run:
        handle = run.publish(make_adapter(1), version=1)
        handle.wait("stored", 60)
        fleet.orchestrator.suspend()
        try:
            with pytest.raises(TimeoutError) as late:
                handle.wait("serving", 1)
        finally:
            fleet.orchestrator.resume()
        text = str(late.value)
        assert "is stored, but not serving yet" in text
        assert "Deadline" not in text
        assert len(text) < 300


class FleetOfThousands(sync_pb2_grpc.SyncServiceServicer):
    """An orchestrator that has as much to say of each engine as thirty adapters make."""

    ENGINES = 3_000

    def GetStatus(self, request, context):
        told = [sync_pb2.MemberStatus(member=f"engine-{i}", pool="rollout", state="READY", detail="x" * (12 << 10)) for i in range(self.ENGINES)]
        return sync_pb2.GetStatusResponse(store_connected=True, members=told)


def test_the_picture_of_thousands_of_engines_arrives(bin_dir):
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        sync_pb2_grpc.add_SyncServiceServicer_to_server(FleetOfThousands(), server)
        at = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            with lorry.Admin(store=at, orchestrator=at) as admin:
                assert len(admin.status()["members"]) == FleetOfThousands.ENGINES
            done = subprocess.run([bin_dir / "lorry", "status", "--store", at, "--orchestrator", at], capture_output=True, text=True,
                                  timeout=DEADLINE_S, check=False)
            assert done.returncode == 0, done.stderr
            assert "3000 engines  READY" in done.stdout and len(done.stdout.splitlines()) < 10, done.stdout
        finally:
            server.stop(None).wait()
