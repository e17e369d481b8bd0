"""Channels to the services, with deadlines, retries and credentials."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from lorry import errors
from lorry.store.v1 import store_pb2_grpc
from lorry.sync.v1 import sync_pb2_grpc

T = TypeVar("T")

# Ten seconds is a hundred times what a call on a busy store was seen to take.
CALL_DEADLINE_S = 10.0
# A store that restarts is back within seconds; training should wait for it rather than die.
RETRY_BUDGET_S = 60.0
_HEADER_MESSAGE_BYTES = 24 << 20  # BeginUpload carries the safetensors header, at most 16 MiB


class Connection:
    """One store and, where syncs are watched, one orchestrator.

    Args:
        store: ``host:port`` of the adapter-store; default: environment variable ``LORRY_STORE``.
        orchestrator: ``host:port`` of the sync-orchestrator; default: ``LORRY_ORCHESTRATOR``; may be missing.
        token: bearer token; default: ``LORRY_TOKEN``.
        ca_file: PEM file of the authority to trust; turns TLS on.

    Raises:
        LorryError: no store was named.
    """

    def __init__(
        self,
        store: str | None = None,
        orchestrator: str | None = None,
        token: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        store = store or os.environ.get("LORRY_STORE")
        orchestrator = orchestrator or os.environ.get("LORRY_ORCHESTRATOR")
        if not store:
            raise errors.LorryError("no adapter-store named: pass store='host:port' or set LORRY_STORE")
        self.token = token or os.environ.get("LORRY_TOKEN")
        self.ca_file = ca_file
        self.store_address = store
        self.store_channel = self.channel(store)
        self.store = store_pb2_grpc.StoreServiceStub(self.store_channel)
        self._sync_channel = self.channel(orchestrator) if orchestrator else None
        self._sync = sync_pb2_grpc.SyncServiceStub(self._sync_channel) if self._sync_channel else None

    @property
    def sync(self) -> sync_pb2_grpc.SyncServiceStub:
        """The orchestrator. Raises LorryError when none was named."""
        if self._sync is None:
            raise errors.LorryError(
                "no sync-orchestrator named: pass orchestrator='host:port' or set LORRY_ORCHESTRATOR"
            )
        return self._sync

    def channel(self, address: str) -> grpc.Channel:
        """A channel to ``address`` with this connection's credentials."""
        options = [
            ("grpc.max_send_message_length", _HEADER_MESSAGE_BYTES),
            ("grpc.max_receive_message_length", _HEADER_MESSAGE_BYTES),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
        ]
        if self.ca_file is None:
            return grpc.insecure_channel(address, options)
        with open(self.ca_file, "rb") as file:
            return grpc.secure_channel(address, grpc.ssl_channel_credentials(file.read()), options)

    def metadata(self) -> list[tuple[str, str]]:
        """Call metadata that carries the token."""
        return [("authorization", f"Bearer {self.token}")] if self.token else []

    def call(self, method: Callable[..., T], request: Any, budget_s: float = RETRY_BUDGET_S) -> T:
        """Calls an idempotent unary method; UNAVAILABLE is tried again within ``budget_s`` seconds.

        Raises:
            LorryError: what the server refused, or that it stayed away.
        """
        give_up_at = time.monotonic() + budget_s
        pause_s = 0.05
        while True:
            try:
                return method(request, timeout=CALL_DEADLINE_S, metadata=self.metadata())
            except grpc.RpcError as error:
                retry = isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.UNAVAILABLE
                if not retry or time.monotonic() + pause_s > give_up_at:
                    raise errors.from_rpc_error(error) from None
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, 2.0)

    def close(self) -> None:
        """Ends all channels."""
        self.store_channel.close()
        if self._sync_channel is not None:
            self._sync_channel.close()
