"""Who may call what: every method of every service, from the protos' own descriptors, against the real programs.

A method without a row here fails, so that nobody adds one without saying who may call it. docs/SECURITY.md shows the same rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf import descriptor, message_factory
from lorry.common.v1 import adapter_pb2
from lorry.engine.v1 import follower_pb2, proxy_pb2
from lorry.store.v1 import store_pb2, store_pb2_grpc
from lorry.sync.v1 import sync_pb2
from lorry.transfer.v1 import transfer_pb2, ucx_pb2
from testing.engines import ROOT, free_port
from testing.fleet import Fleet, Service
from testing.raw_publish import RawImage
from testing.waiting import until

ADAPTER = "policy"  # which every request here is about
# The operator last: its Drain ends the proxy.
CALLERS = ("nobody", "reader", "publisher", "publisher of it", "publisher of another", "engine", "operator")
TOKENS = {
    "reader": "reader reader-token-0123456789 somebody",
    "publisher": "publisher publisher-token-0123456789 trainer",
    "engine": "engine engine-token-0123456789 member",
    "operator": "operator operator-token-0123456789 alice",
    "publisher of it": f"publisher limited-token-0123456789 small-trainer adapters=math-*,{ADAPTER}",
    "publisher of another": "publisher elsewhere-token-0123456789 other-trainer adapters=math-*",
    "operator of another": "operator elsewhere-operator-0123456789 bob adapters=math-*",
}
EVERYBODY = {"reader", "publisher", "engine", "operator"}
PUBLISHERS = {"publisher", "operator"}
OF_IT = {"publisher of it"}
LIMITED = {"publisher of it", "publisher of another"}

# Uploads belong to whoever began them, so that those calls are open to every publisher and judged by the upload.
ROWS: dict[str, set[str]] = {
    "store.v1.StoreService/OpenRun": PUBLISHERS | OF_IT,
    "store.v1.StoreService/BeginUpload": PUBLISHERS | OF_IT,
    "store.v1.StoreService/GetUpload": PUBLISHERS | LIMITED,
    "store.v1.StoreService/AbortUpload": PUBLISHERS | LIMITED,
    "store.v1.StoreService/CommitUpload": PUBLISHERS | LIMITED,
    "store.v1.StoreService/OpenFetch": EVERYBODY | OF_IT,
    "store.v1.StoreService/JoinFanOut": {"engine", "operator"},
    "store.v1.StoreService/FollowUploads": {"engine", "operator"},
    "store.v1.StoreService/Watch": EVERYBODY,
    "store.v1.StoreService/GetRevision": EVERYBODY,
    "store.v1.StoreService/GetVersion": EVERYBODY | OF_IT,
    "store.v1.StoreService/ListVersions": EVERYBODY | OF_IT,
    "store.v1.StoreService/DeleteVersion": {"operator"},
    "store.v1.StoreService/SetAdapter": PUBLISHERS | OF_IT,
    "store.v1.StoreService/GetAdapter": EVERYBODY | OF_IT,
    "store.v1.StoreService/ListAdapters": EVERYBODY,
    "store.v1.StoreService/ArchiveAdapter": {"operator"},
    "store.v1.StoreService/DeleteAdapter": {"operator"},
    "store.v1.StoreService/SetAlias": PUBLISHERS | OF_IT,
    "store.v1.StoreService/SetHolds": {"operator"},
    "sync.v1.SyncService/Attach": {"engine", "operator"},
    "sync.v1.SyncService/WatchSync": EVERYBODY | OF_IT,
    "sync.v1.SyncService/Resolve": PUBLISHERS | OF_IT,
    "sync.v1.SyncService/SetOverride": {"operator"},
    "sync.v1.SyncService/MarkMember": {"operator"},
    "sync.v1.SyncService/LiftVerdict": {"operator"},
    "sync.v1.SyncService/AdoptFleet": {"operator"},
    "sync.v1.SyncService/GetStatus": EVERYBODY | OF_IT,
    "sync.v1.SyncService/Watch": EVERYBODY,
    "engine.v1.ProxyService/GetStatus": EVERYBODY,
    "engine.v1.ProxyService/Explain": EVERYBODY,
    "engine.v1.ProxyService/Drain": {"operator"},
    "engine.v1.FollowerService/Follow": {"engine", "operator"},
}
# Served to whoever shows a ticket of the store, whatever else they show.
BY_TICKET = {"transfer.v1.TransferService/Get", "transfer.v1.TransferService/Put", "transfer.v1.UcxService/Attach"}
FILES = (store_pb2, sync_pb2, proxy_pb2, follower_pb2, transfer_pb2, ucx_pb2)
REFUSALS = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


def methods() -> Iterator[descriptor.MethodDescriptor]:
    for file in FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            yield from service.methods


def name_of(method: descriptor.MethodDescriptor) -> str:
    return f"{method.containing_service.full_name.removeprefix('lorry.')}/{method.name}"


def table() -> list[str]:
    """The rows as docs/SECURITY.md shows them."""
    rows = ["| call | " + " | ".join(CALLERS) + " |", "|---" * (len(CALLERS) + 1) + "|"]
    for name, allowed in ROWS.items():
        service, _, call = name.partition("/")
        label = f"`{service.rpartition('.')[2]}.{call}`"
        rows.append(f"| {label} | " + " | ".join("yes" if caller in allowed else "" for caller in CALLERS) + " |")
    return rows


def request_of(method: descriptor.MethodDescriptor) -> bytes:
    """As empty as may be, but about ADAPTER: whether it is admitted is all that is asked."""
    request = message_factory.GetMessageClass(method.input_type)()
    for field in method.input_type.fields:
        if field.name in ("adapter", "name") and field.type == field.TYPE_STRING:
            setattr(request, field.name, ADAPTER)
        elif field.name == "selector":
            setattr(request, field.name, ADAPTER)
        elif field.name == "version" and field.message_type == adapter_pb2.VersionRef.DESCRIPTOR:
            request.version.adapter = ADAPTER
    return bytes(request.SerializeToString())


def only(request: bytes, answered: threading.Event) -> Iterator[bytes]:
    """One message of a stream that stays open: of a client that leaves, a service may not say what it thinks of it."""
    yield request
    answered.wait(10)


def answer(channel: grpc.Channel, method: descriptor.MethodDescriptor, caller: str) -> grpc.StatusCode:
    """How the call ends, or OK as soon as a stream has said something."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    token = TOKENS[caller].split()[1] if caller in TOKENS else ""
    options = {"metadata": (("authorization", f"Bearer {token}"),) if token else (), "timeout": 10.0}
    request = request_of(method)
    answered = threading.Event()
    try:
        if method.client_streaming:
            replies = channel.stream_stream(path)(only(request, answered), **options)
        elif method.server_streaming:
            replies = channel.unary_stream(path)(request, **options)
        else:
            channel.unary_unary(path)(request, **options)
            return grpc.StatusCode.OK
        next(replies, None)
        replies.cancel()
        return grpc.StatusCode.OK
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call)
        return error.code()
    finally:
        answered.set()


@pytest.fixture(scope="module")
def fleet(bin_dir, tmp_path_factory):
    """Store, orchestrator and a proxy whose engine is away, each asking for a token."""
    folder = tmp_path_factory.mktemp("roles")
    tokens, own = folder / "tokens", folder / "own"
    tokens.write_text("".join(f"{line}\n" for line in TOKENS.values()))
    own.write_text(TOKENS["operator"].split()[1])
    access = {"auth-token-file": tokens}
    with Fleet(bin_dir, folder, {"away": f"http://127.0.0.1:{free_port()}"}, store_flags=access,
               orchestrator_flags=access | {"token-file": own},
               proxy_flags=access | {"token-file": own, "on-wedged": "exec:restart --password=hunter2"}) as made:
        yield made


@pytest.fixture(scope="module")
def follower(bin_dir, fleet, tmp_path_factory):
    """On another node of the engine that is away, under the same rules."""
    proxy = fleet.proxies["away"]
    same = {flag: proxy.flags[flag] for flag in ("store", "auth-token-file", "token-file", "member")}
    folder = tmp_path_factory.mktemp("follower")
    images = {"image-dir": fleet.image_root / "follower"}
    made = Service(bin_dir / "engine-proxy", "follower", folder, {"follow": "true", **same, **images})
    yield made.start().wait_ready()
    made.stop()


@pytest.fixture(scope="module")
def channels(fleet, follower):
    """By the name of a package, and of the service where a program has not all of its package."""
    opened = {
        package: grpc.insecure_channel(service.addresses["grpc"])
        for package, service in {
            "lorry.store.v1": fleet.store,
            "lorry.transfer.v1": fleet.store,
            "lorry.sync.v1": fleet.orchestrator,
            "lorry.engine.v1": fleet.proxies["away"],
            "lorry.engine.v1.FollowerService": follower,
        }.items()
    }
    yield opened
    for channel in opened.values():
        channel.close()


def test_every_method_has_a_row():
    assert {name_of(m) for m in methods()} == set(ROWS) | BY_TICKET


@pytest.mark.parametrize("caller", CALLERS)
def test_a_call_is_open_to_its_roles_alone(channels, caller):
    wrong = []
    for method in methods():
        if name_of(method) in BY_TICKET:
            continue
        service = method.containing_service
        code = answer(channels.get(service.full_name) or channels[service.file.package], method, caller)
        expected = caller in ROWS[name_of(method)]
        if (code not in REFUSALS) != expected or (caller == "nobody" and code != grpc.StatusCode.UNAUTHENTICATED):
            wrong.append(f"{name_of(method)}: {code.name}, but it should {'' if expected else 'not '}be admitted")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("caller", CALLERS)
def test_bytes_move_by_ticket_alone(channels, caller):
    for method in methods():
        if name_of(method) in BY_TICKET:
            refused = answer(channels["lorry.transfer.v1"], method, caller)
            assert refused in REFUSALS | {grpc.StatusCode.INVALID_ARGUMENT}


def test_a_limited_operator_leaves_the_uploads_of_other_adapters_alone(channels, tiny):
    """An operator acts for every owner, but only on its own adapters; an upload's id names neither."""
    store = store_pb2_grpc.StoreServiceStub(channels["lorry.store.v1"])

    def ask(method, request, caller):
        return method(request, timeout=10, metadata=[("authorization", f"Bearer {TOKENS[caller].split()[1]}")])

    image = RawImage.of(tiny / "adapters" / "v1")
    run = ask(store.OpenRun, store_pb2.OpenRunRequest(adapter=ADAPTER, request_id="limited"), "publisher").run
    begun = ask(store.BeginUpload, store_pb2.BeginUploadRequest(
        version=adapter_pb2.VersionRef(adapter=ADAPTER, run=run, number=1), attempt=1, header=image.header,
        config_json=image.config_json, image_bytes=image.image_bytes), "publisher")
    named = {"upload_id": begun.upload_id}
    for call, request in ((store.GetUpload, store_pb2.GetUploadRequest(**named)),
                          (store.CommitUpload, store_pb2.CommitUploadRequest(**named)),
                          (store.AbortUpload, store_pb2.AbortUploadRequest(**named))):
        with pytest.raises(grpc.RpcError) as refused:
            ask(call, request, "operator of another")
        assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED, refused.value
    ask(store.AbortUpload, store_pb2.AbortUploadRequest(**named), "operator")


@pytest.mark.parametrize(("program", "flags"), [
    ("sync-orchestrator", ()), ("engine-proxy", ("--orchestrator=127.0.0.1:1", "--engine=http://127.0.0.1:1", "--member=a"))])
def test_a_token_that_cannot_be_read_is_named(bin_dir, tmp_path, program, flags):
    missing = tmp_path / "no-token"
    done = subprocess.run(
        [bin_dir / program, f"--data-dir={tmp_path / 'data'}", "--store=127.0.0.1:1", f"--token-file={missing}", *flags],
        capture_output=True, text=True, timeout=60, check=False, env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert done.returncode > 0, f"no signal: {done.returncode}"
    assert str(missing) in done.stdout + done.stderr


@pytest.mark.parametrize(("token", "orchestrator", "why"), [
    ("nobodys-token-0123456789", "", "cannot attach: UNAUTHENTICATED"),
    (TOKENS["reader"].split()[1], "", "cannot attach: ROLE_MISSING"),
    (TOKENS["engine"].split()[1], "127.0.0.1:1", "cannot attach: UNAVAILABLE")], ids=["unknown", "reader", "nobody there"])
def test_a_proxy_that_cannot_attach_says_why(bin_dir, fleet, tmp_path, token, orchestrator, why):
    own = tmp_path / "own"
    own.write_text(token)
    flags = fleet.proxies["away"].flags | {
        "member": "refused", "engine": f"http://127.0.0.1:{free_port()}", "token-file": own, "door-listen": "127.0.0.1:0",
        "listen": "127.0.0.1:0", "image-dir": fleet.image_root / "refused"}
    if orchestrator:
        flags["orchestrator"] = orchestrator
    proxy = Service(bin_dir / "engine-proxy", "refused", tmp_path / "refused", flags)
    try:
        proxy.start().wait_ready()
        until(lambda: why in proxy.log_tail(), "its log says why")
        with pytest.raises(urllib.error.HTTPError) as not_ready:
            urllib.request.urlopen(f"http://{proxy.addresses['admin']}/readyz", timeout=10)
        assert why.partition(": ")[2] in not_ready.value.read().decode()
    finally:
        proxy.stop()
    assert proxy.log_tail(1000).count(why) == 1, "once, however often it dials"


def test_data_is_private(fleet):
    for service in (fleet.store, fleet.orchestrator, fleet.proxies["away"]):
        files = [service.data_dir, *service.data_dir.rglob("*")]
        open_to_others = [f"{path} {path.stat().st_mode:o}" for path in files if path.stat().st_mode & 0o077]
        assert service.data_dir.stat().st_mode & 0o777 == 0o700
        assert not [f for f in open_to_others if ".db" in f], open_to_others
    assert (fleet.image_root / "away").stat().st_mode & 0o777 == 0o700


def test_settings_show_no_secrets(fleet):
    def shown(service):
        with urllib.request.urlopen(f"http://{service.addresses['admin']}/configz", timeout=10) as reply:
            return json.load(reply)

    for service in (fleet.store, fleet.orchestrator):
        assert shown(service)["data_dir"] == str(service.data_dir)
    settings = shown(fleet.proxies["away"])
    assert settings["on_wedged"] == "(set)"
    assert "hunter2" not in json.dumps(settings)


def test_the_page_shows_these_rows():
    page = ROOT / "docs" / "SECURITY.md"
    shown = page.read_text().splitlines()
    missing = [row for row in table() if row not in shown]
    assert not missing, f"{page} lacks or misstates:\n" + "\n".join(missing)
