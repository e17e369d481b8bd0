"""Channels to the services, with deadlines, retries and credentials."""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from lorry import errors, up_file
from lorry.credentials import Credentials
from lorry.reach import check_tls
from lorry.store.v1 import store_pb2_grpc
from lorry.sync.v1 import sync_pb2_grpc

T = TypeVar("T")

# Ten seconds is a hundred times what a call on a busy store was seen to take.
CALL_DEADLINE_S = 10.0
# A service that restarts is back within seconds; training should wait for it rather than die.
RETRY_BUDGET_S = 60.0
# Whoever waits for a service that is away is told so after this long.
SAID_AFTER_S = 3.0
# How old a channel that fails gets. gRPC asks a name server that does not know a name more and more rarely, down to once in two minutes,
# and nothing but another channel makes it ask again; in Kubernetes the name of a service is unknown while its pod moves.
REDIAL_S = 2.0
_log = logging.getLogger("lorry")
# A person waits at a prompt, and a wrong address is the likelier reason.
ADMIN_BUDGET_S = 10.0
# A store whose node is drained comes back on another within minutes; a version that was trained is worth the wait.
PUBLISH_BUDGET_S = 600.0
_HEADER_MESSAGE_BYTES = 24 << 20  # BeginUpload carries the safetensors header, at most 16 MiB
_STATUS_BYTES = 256 << 20  # the picture of a fleet: of the 20,000 members that a roster holds, 12 KiB each
# Refusals that end by themselves: too many callers at once, such as all ranks of a job.
_BUSY = ("SERVER_BUSY", "TOO_MANY_SESSIONS")


class Connection:
    """One store and, where syncs are watched, one orchestrator. Thread-safe.

    Args:
        store: ``host:port`` of the adapter-store; default: ``LORRY_STORE``, else the fleet that ``lorry up`` runs here.
        orchestrator: ``host:port`` of the sync-orchestrator; default: ``LORRY_ORCHESTRATOR``, else that of the same
            ``lorry up``; may be missing.
        token, token_file, ca_file, cert_file, key_file: see :class:`lorry.credentials.Credentials`; default: ``LORRY_TOKEN``,
            ``LORRY_TOKEN_FILE``, ``LORRY_CA_FILE``, ``LORRY_CERT_FILE``, ``LORRY_KEY_FILE``; for the fleet of ``lorry up``
            the token that it made.
        budget_s: how long a call is tried again while the service is away or busy, seconds.

    Raises:
        LorryError: no store was named, or a file cannot be read.
    """

    def __init__(
        self,
        store: str | None = None,
        orchestrator: str | None = None,
        *,
        token: str | None = None,
        token_file: str | None = None,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        budget_s: float = RETRY_BUDGET_S,
    ) -> None:
        up = up_file.find()
        store, orchestrator = _find(up, store, orchestrator)
        self.credentials = Credentials.find(token, token_file, ca_file, cert_file, key_file)
        is_up = (store, orchestrator) == (up.store, up.orchestrator)
        if is_up and not self.credentials.token and not self.credentials.token_file:
            self.credentials = dataclasses.replace(self.credentials, token_file=up.token_file)
        self.budget_s = budget_s
        self.store_address = store
        self._sync_address = orchestrator or ""
        self._lock = threading.Lock()
        self._dial()

    def _dial(self) -> None:
        files = self.credentials.files_of_tls()
        self.store_channel = self.channel(self.store_address)
        self.store = store_pb2_grpc.StoreServiceStub(self.store_channel)
        self._sync_channel = self.channel(self._sync_address, _STATUS_BYTES) if self._sync_address else None
        self._sync = sync_pb2_grpc.SyncServiceStub(self._sync_channel) if self._sync_channel else None
        self._dialled_with = files
        self._dialled_at = time.monotonic()

    def _dial_anew(self) -> None:
        """After nobody answered. A channel shows and trusts for ever what lay in the files when it was made, and hardly asks for a name again.
        Those of before end with what still uses them."""
        with self._lock:
            is_young = time.monotonic() - self._dialled_at < REDIAL_S
            if is_young and self.credentials.files_of_tls() == self._dialled_with:
                return
            try:
                self._dial()
            except errors.LorryError as error:  # they are being replaced just now
                _log.warning("%s", error.message)

    @property
    def sync(self) -> sync_pb2_grpc.SyncServiceStub:
        """The orchestrator. Raises LorryError when none was named."""
        if self._sync is None:
            raise errors.LorryError(
                "no sync-orchestrator named: pass orchestrator='host:port' or set LORRY_ORCHESTRATOR", "NO_ADDRESS",
                "INVALID_ARGUMENT")
        return self._sync

    def channel(self, address: str, receive_bytes: int = _HEADER_MESSAGE_BYTES) -> grpc.Channel:
        """A channel to ``address`` with this connection's credentials, for replies of at most so many bytes."""
        options = [
            ("grpc.max_send_message_length", _HEADER_MESSAGE_BYTES),
            ("grpc.max_receive_message_length", receive_bytes),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2_000),  # gRPC's own grows to two minutes
            ("grpc.dns_min_time_between_resolutions_ms", 1_000),  # a pod that has moved; gRPC's own is 30 s
            # A proxy variable of the environment must not catch calls between Lorry's own parts.
            ("grpc.enable_http_proxy", 0),
        ]
        self.credentials.warn_if_in_clear(address)
        if not self.credentials.tls:
            return grpc.insecure_channel(address, options)
        return grpc.secure_channel(address, self.credentials.channel_credentials(), options)

    def metadata(self) -> list[tuple[str, str]]:
        """Call metadata that carries the token."""
        return self.credentials.metadata()

    def call(self, method: Callable[..., T], request: Any, budget_s: float | None = None, stop: threading.Event | None = None) -> T:
        """Calls an idempotent unary method, again and again while the service is away or busy, for at most ``budget_s``
        seconds (default: the connection's), and not again once ``stop`` is set.

        Raises:
            Cancelled: ``stop`` was set.
            LorryError: what the server refused, or that it stayed away.
        """
        stop = stop or threading.Event()
        who, address, name = self._asked_by(method)
        began = time.monotonic()
        give_up_at = began + (self.budget_s if budget_s is None else budget_s)
        pause_s, looked, is_said = 0.05, False, False
        while True:
            try:
                return method(request, timeout=CALL_DEADLINE_S, metadata=self.metadata())
            except grpc.RpcError as error:
                failure = errors.from_rpc_error(error)
            if not may_pass(failure):
                raise failure
            if failure.code == "UNAVAILABLE" and not failure.reason:
                if not looked:
                    check_tls(address, self.credentials)
                    looked = True
                failure = errors.of(f"the {who} at {address} does not answer ({failure.message}); check the address, and `lorry doctor`", "",
                                    failure.code)
                self._dial_anew()
                method = getattr(self.store if address == self.store_address else self._sync, name, method)
            if time.monotonic() + pause_s > give_up_at:
                raise failure
            if not is_said and time.monotonic() - began > SAID_AFTER_S:
                _log.warning("%s; trying again for another %.0f s", failure.message, give_up_at - time.monotonic())
                is_said = True
            if stop.wait(pause_s * random.uniform(0.5, 1.0)):
                raise errors.Cancelled(f"cancelled while it was tried again: {failure.message}", "", "CANCELLED")
            pause_s = min(2 * pause_s, 2.0)

    def _asked_by(self, method: Callable[..., Any]) -> tuple[str, str, str]:
        """Whom, where, and the method's name."""
        for who, address, stub in (("adapter-store", self.store_address, self.store), ("sync-orchestrator", self._sync_address, self._sync)):
            for name, known in vars(stub).items() if stub is not None else ():
                if known is method:
                    return who, address, name
        return "service", self.store_address, ""  # of a channel that was just replaced

    def check_tls(self) -> None:
        """For who follows the orchestrator without ``call`` and finds it away: raises LorryError TLS_FAILED where it is for this reason,
        which no patience mends; with certificates that were renewed it is dialled anew."""
        check_tls(self._sync_address, self.credentials)
        self._dial_anew()

    def close(self) -> None:
        """Ends all channels."""
        self.store_channel.close()
        if self._sync_channel is not None:
            self._sync_channel.close()


def may_pass(failure: errors.LorryError) -> bool:
    """Whether the same call may succeed a moment later: nobody answered, or whoever answered was busy."""
    if failure.code == "DEADLINE_EXCEEDED":
        return not failure.reason  # gRPC's own; with a reason it is the server's answer
    return failure.code == "UNAVAILABLE" or failure.reason in _BUSY


def _find(up: up_file.Up, store: str | None, orchestrator: str | None) -> tuple[str, str | None]:
    store = store or os.environ.get("LORRY_STORE")
    orchestrator = orchestrator or os.environ.get("LORRY_ORCHESTRATOR")
    # Never one fleet's store with another's orchestrator, nor one's token shown to another.
    if (store or up.store) == up.store and (orchestrator or up.orchestrator) == up.orchestrator:
        store, orchestrator = up.store, up.orchestrator
    if not store and orchestrator and up.store:
        raise errors.LorryError(f"no adapter-store named: what `lorry up` runs here is not the fleet of {orchestrator}; pass "
                                "store='host:port' or set LORRY_STORE", "NO_ADDRESS", "INVALID_ARGUMENT")
    if not store:
        raise errors.LorryError("no adapter-store named: pass store='host:port', set LORRY_STORE, or run `lorry up`",
                                "NO_ADDRESS", "INVALID_ARGUMENT")
    return store, orchestrator
