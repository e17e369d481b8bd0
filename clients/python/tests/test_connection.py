"""Where the services are, what is shown to them, and what is worth another try. Only a port that nobody listens on is dialled."""

from __future__ import annotations

import json
import os
import pathlib
import threading
import warnings

import grpc
import pytest

from lorry import Admin, Connection, InsecureWarning, LorryError, connection, up_file
from lorry.connection import may_pass
from lorry.credentials import Credentials, is_loopback
from lorry.errors import Cancelled
from lorry.store.v1 import store_pb2, store_pb2_grpc
from lorry.sync.v1 import sync_pb2

FAR = "192.0.2.1:7400"  # of the range that is for documentation


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    for name in [n for n in os.environ if n.startswith("LORRY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def write_up_file(pid: int) -> None:
    up_file.path().parent.mkdir(parents=True)
    up_file.path().write_text(json.dumps({"store": "127.0.0.1:1", "orchestrator": "127.0.0.1:2", "token_file": "of up",
                                           "pid": pid}))


def has_orchestrator(connection: Connection) -> bool:
    try:
        return connection.sync is not None
    except LorryError:
        return False


def test_the_fleet_of_lorry_up_is_found_by_itself() -> None:
    write_up_file(os.getpid())
    found = Connection()
    assert found.store_address == "127.0.0.1:1"
    assert has_orchestrator(found)


def test_a_store_that_is_named_is_not_mixed_with_the_orchestrator_of_lorry_up(monkeypatch: pytest.MonkeyPatch) -> None:
    write_up_file(os.getpid())
    monkeypatch.setenv("LORRY_STORE", FAR)
    assert not has_orchestrator(Connection())
    assert has_orchestrator(Connection("127.0.0.1:1"))


def test_the_token_of_lorry_up_is_shown_to_its_services_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    write_up_file(os.getpid())
    assert Connection().credentials.token_file == Connection("127.0.0.1:1").credentials.token_file == "of up"
    assert Connection(FAR).credentials.token_file is None
    assert Connection(token="mine").credentials == Credentials("mine")
    monkeypatch.setenv("LORRY_TOKEN_FILE", "of the environment")
    assert Connection().credentials.token_file == "of the environment"


def test_an_orchestrator_that_is_named_is_not_mixed_with_the_store_of_lorry_up() -> None:
    write_up_file(os.getpid())
    with pytest.raises(LorryError, match=f"no adapter-store named: .* not the fleet of {FAR}") as refused:
        Connection(orchestrator=FAR)
    assert refused.value.reason == "NO_ADDRESS"
    assert Connection("127.0.0.1:1", FAR).credentials.token_file is None, "that one would be shown the token, too"
    found = Connection(orchestrator="127.0.0.1:2")
    assert found.store_address == "127.0.0.1:1" and found.credentials.token_file == "of up"


@pytest.mark.parametrize("pid", [2**22 + 1, "no number"])
def test_the_file_of_a_fleet_that_was_killed_names_nobody(pid: int) -> None:
    write_up_file(pid)
    with pytest.raises(LorryError, match="lorry up"):
        Connection()


def test_credentials_come_from_arguments_then_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    for name in ("TOKEN", "TOKEN_FILE", "CA_FILE", "CERT_FILE", "KEY_FILE"):
        monkeypatch.setenv(f"LORRY_{name}", f"OF_{name}")
    everything = Credentials.find(None, None, None, None, None)
    assert everything == Credentials("OF_TOKEN", "OF_TOKEN_FILE", "OF_CA_FILE", "OF_CERT_FILE", "OF_KEY_FILE")
    assert everything.metadata() == [("authorization", "Bearer OF_TOKEN")]
    file = tmp_path / "token"
    file.write_text("first\n")
    named = Credentials.find(None, str(file), "other", None, None)
    assert (named.token, named.ca_file) == (None, "other"), "an argument goes before the environment"
    assert named.metadata() == [("authorization", "Bearer first")]
    file.write_text("rotated\n")
    assert named.metadata() == [("authorization", "Bearer rotated")]


def test_a_token_file_that_is_being_replaced_takes_no_token_away(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "token"
    shown = Credentials(token_file=str(file))
    with pytest.raises(LorryError, match="cannot be read"):
        shown.metadata()
    for text, header in [("", None), ("first", "Bearer first"), ("\n", "Bearer first"), (None, "Bearer first"), ("second", "Bearer second")]:
        file.write_text(text) if text is not None else file.unlink()
        assert dict(shown.metadata()).get("authorization") == header
    file.unlink()
    assert shown.as_fields() == {"token": "second"}, "a mover is told as much"


@pytest.mark.parametrize("secret", ["s3cret-old\ns3cret-new", "operator s3cret alice", "\ufeffs3cret", "s3cretä", "s3cret\x01", "s3cret\udce4"])
def test_what_is_no_token_is_refused_and_never_quoted(secret: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    file.write_text(secret + "\n", errors="surrogateescape")
    for credentials, named in ((Credentials(secret), "given as the token"), (Credentials(token_file=str(file)), str(file))):
        with pytest.raises(LorryError, match=named) as refused:
            credentials.metadata()
        assert refused.value.reason == "ARGUMENT_INVALID"
        assert "s3cret" not in str(refused.value)
    shown = Credentials(token_file=str(file))
    file.write_text("first")
    assert shown.metadata() == [("authorization", "Bearer first")]
    for _ in range(2):
        file.write_text(secret, errors="surrogateescape")
        assert shown.metadata() == [("authorization", "Bearer first")], "a bad file takes no token away"
    assert caplog.text.count("is not one token") == 1 and "s3cret" not in caplog.text


def test_half_a_client_certificate_is_refused() -> None:
    with pytest.raises(LorryError, match="both cert_file and key_file"):
        Connection(FAR, cert_file="a.pem")


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(LorryError, match="/no/such/ca.pem cannot be read"):
        Connection(FAR, ca_file="/no/such/ca.pem")


def test_a_token_in_clear_never_goes_without_a_word() -> None:
    with pytest.warns(InsecureWarning, match=FAR):
        Admin(FAR, token="secret")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Admin("localhost:1", token="secret")
        Admin("127.0.0.1:1", "[::1]:2", token="secret")
        Admin(FAR)


@pytest.mark.parametrize(("address", "here"), [
    ("localhost:1", True), ("127.0.0.2:1", True), ("[::1]:1", True), ("unix:/run/lorry", True), ("dns:///store:7400", False),
    ("10.0.0.1:1", False), ("[2001:db8::1]:1", False), ("localhost.example.com:1", False),
])
def test_what_loopback_is(address: str, here: bool) -> None:
    assert is_loopback(address) == here


@pytest.mark.parametrize(("code", "reason", "passes"), [
    ("UNAVAILABLE", "", True), ("UNAVAILABLE", "SHUTTING_DOWN", True), ("RESOURCE_EXHAUSTED", "SERVER_BUSY", True),
    ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", False), ("RESOURCE_EXHAUSTED", "", False), ("DEADLINE_EXCEEDED", "", True),
    ("DEADLINE_EXCEEDED", "CHECK_RUNNING", False), ("FAILED_PRECONDITION", "RUN_FENCED", False),
])
def test_what_is_worth_another_try(code: str, reason: str, passes: bool) -> None:
    assert may_pass(LorryError("", reason, code)) == passes


def test_who_does_not_answer_is_said_while_it_is_waited_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(connection, "SAID_AFTER_S", 0.0)
    nobody = Connection("127.0.0.1:1", budget_s=0.5)
    with pytest.raises(LorryError, match="adapter-store at 127.0.0.1:1 does not answer .*; check the address") as away:
        nobody.call(nobody.store.ListAdapters, store_pb2.ListAdaptersRequest())
    assert away.value.code == "UNAVAILABLE"
    (said,) = caplog.messages
    assert "adapter-store at 127.0.0.1:1 does not answer" in said and "trying again" in said


def test_only_the_service_that_is_away_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one's certificate is no reason to give up on a service that restarts."""
    looked: list[str] = []
    monkeypatch.setattr(connection, "check_tls", lambda address, credentials: looked.append(address))
    nobody = Connection("127.0.0.1:1", "127.0.0.1:2", budget_s=0.0)
    for ask in (lambda: nobody.call(nobody.store.ListAdapters, store_pb2.ListAdaptersRequest()),
                lambda: nobody.call(nobody.sync.GetStatus, sync_pb2.GetStatusRequest())):
        with pytest.raises(LorryError, match="does not answer"):
            ask()
    nobody.check_tls()  # of a handle, which follows the orchestrator
    assert looked == ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:2"]


def test_a_service_that_has_moved_is_looked_up_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: dict[str, object] = {}
    dial = grpc.insecure_channel

    def noted(address: str, options: list[tuple[str, object]]) -> grpc.Channel:
        dialled.update(options)
        return dial(address, options)

    monkeypatch.setattr(grpc, "insecure_channel", noted)
    Connection("127.0.0.1:1")
    assert dialled["grpc.dns_min_time_between_resolutions_ms"] == 1_000


@pytest.mark.parametrize(("redial_s", "anew"), [(0.0, True), (60.0, False)])
def test_a_service_that_stays_away_is_asked_over_another_channel(monkeypatch: pytest.MonkeyPatch, redial_s: float, anew: bool) -> None:
    """One that has looked for a name in vain for long looks for it once in two minutes, and the service may have been back since."""
    asked: list[int] = []
    stub_of = store_pb2_grpc.StoreServiceStub

    def noted(channel: grpc.Channel) -> store_pb2_grpc.StoreServiceStub:
        stub = stub_of(channel)
        ask, number = stub.ListAdapters, len(made)
        made.append(channel)
        stub.ListAdapters = lambda *args, **kwargs: (note(number), ask(*args, **kwargs))[1]
        return stub

    def note(number: int) -> None:
        asked.append(number)
        if len(asked) == 3:
            enough.set()

    made: list[grpc.Channel] = []
    enough = threading.Event()
    monkeypatch.setattr(connection, "REDIAL_S", redial_s)
    monkeypatch.setattr(store_pb2_grpc, "StoreServiceStub", noted)
    nobody = Connection("127.0.0.1:1")
    with pytest.raises(Cancelled, match="does not answer"):
        nobody.call(nobody.store.ListAdapters, store_pb2.ListAdaptersRequest(), stop=enough)
    assert asked == ([0, 1, 2] if anew else [0, 0, 0])
