"""Looking at adapters, versions, aliases and engines, and changing what may be changed by hand."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from google.protobuf import json_format

from lorry import errors, policies
from lorry.common.v1 import adapter_pb2
from lorry.connection import ADMIN_BUDGET_S, Connection
from lorry.store.v1 import store_pb2
from lorry.sync.v1 import fleet_pb2, sync_pb2

# As sync-orchestrator counts its incarnations from.
_BEGIN_OF_2026 = 490_896 * 3600


@dataclass(frozen=True)
class VersionInfo:
    """A stored version. ``image_bytes``: length of its image; ``stored_at_ms``: since 1970, UTC."""

    adapter: str
    run: int
    number: int
    digest: str
    image_bytes: int
    stored_at_ms: int


@dataclass(frozen=True)
class AdapterInfo:
    """An adapter. ``run``: the current one, 0 before the first; ``versions``: how many are stored; ``archived``: out of service."""

    name: str
    run: int
    versions: int
    stored_bytes: int
    archived: bool


@dataclass(frozen=True)
class Lease:
    """A version that stays loaded for as long as it is leased, for clients that call engines without a door.

    Attributes:
        adapter, run, number, digest: the version.
        engine_names: what to write in a request, by kind of engine: ``{"SGLANG": name, "VLLM": name}``.
        loaded: READY engines of the pool that have it loaded now.
        members: READY engines of the pool.
    """

    adapter: str
    run: int
    number: int
    digest: str
    engine_names: Mapping[str, str]
    loaded: int
    members: int

    @property
    def ready(self) -> bool:
        """Every engine of the pool has it: requests may begin anywhere."""
        return 0 < self.members <= self.loaded


class Admin:
    """Everything but publishing. Thread-safe.

    Args:
        store, orchestrator, token, token_file, ca_file, cert_file, key_file: see :class:`lorry.Connection`.
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
    ) -> None:
        self._connection = Connection(store, orchestrator, token=token, token_file=token_file, ca_file=ca_file,
                                      cert_file=cert_file, key_file=key_file, budget_s=ADMIN_BUDGET_S)

    def versions(self, adapter: str, run: int = 0) -> list[VersionInfo]:
        """Stored versions, newest first; ``run`` 0: of all runs. Raises LorryError."""
        out: list[VersionInfo] = []
        token = ""
        while True:
            page = self._connection.call(
                self._connection.store.ListVersions,
                store_pb2.ListVersionsRequest(adapter=adapter, run=run, page_size=1000, page_token=token),
            )
            out += [_info(v) for v in page.versions]
            token = page.next_page_token
            if not token:
                return out

    def adapters(self) -> list[AdapterInfo]:
        """All adapters, by name. Raises LorryError."""
        out: list[AdapterInfo] = []
        token = ""
        while True:
            request = store_pb2.ListAdaptersRequest(page_size=1000, page_token=token)
            page = self._connection.call(self._connection.store.ListAdapters, request)
            out += [AdapterInfo(a.name, a.current_run, a.versions, a.stored_bytes, a.archived) for a in page.adapters]
            token = page.next_page_token
            if not token:
                return out

    def create(self, adapter: str, policy: Mapping[str, Any] | None = None) -> None:
        """Creates an adapter; one that exists stays as it is, but for the given fields of its policy. Raises LorryError."""
        self.set_policy(adapter, policy or {})

    def archive(self, adapter: str, archived: bool = True) -> None:
        """Takes an adapter out of service, with all that it has stored; ``archived=False`` takes it back. Raises LorryError."""
        request = store_pb2.ArchiveAdapterRequest(name=adapter, archived=archived)
        self._connection.call(self._connection.store.ArchiveAdapter, request)

    def delete_adapter(self, adapter: str, *, with_versions: bool = False) -> None:
        """Deletes an adapter with its runs, aliases and policy.

        Args:
            with_versions: delete what it has stored, too.

        Raises:
            LorryError: ADAPTER_NOT_EMPTY: versions are stored; IN_USE: archive it first, so that engines let it go.
        """
        request = store_pb2.DeleteAdapterRequest(name=adapter, with_versions=with_versions)
        self._connection.call(self._connection.store.DeleteAdapter, request)

    def policy(self, adapter: str) -> dict[str, Any]:
        """What was set of the adapter's policy, in the words that :meth:`set_policy` takes. Raises LorryError."""
        return policies.to_words(self._adapter(adapter).policy)

    def set_policy(self, adapter: str, policy: Mapping[str, Any], *, replace: bool = False) -> dict[str, Any]:
        """Changes the given fields of the adapter's policy, and leaves the others; creates the adapter if it is new.

        Args:
            policy: fields of ``lorry.common.v1.AdapterPolicy`` by name, enumerations as words, e.g.
                ``{"max_staleness": 0, "mode": "rolling", "keep": 3, "min_engines": "100%"}``. None sets a field back to
                its default.
            replace: forget the fields that are not given.

        Returns:
            the whole policy as it is now, as :meth:`policy` does.

        Raises:
            LorryError: POLICY_INVALID says what to change; ADAPTER_MOVED: somebody else changed it at the same moment.
        """
        known = None
        try:
            known = self._adapter(adapter)
        except errors.LorryError as error:
            if error.code != "NOT_FOUND":
                raise
        message = adapter_pb2.AdapterPolicy()
        if known is not None and not replace:
            message.CopyFrom(known.policy)
        policies.change(message, policy)
        request = store_pb2.SetAdapterRequest(name=adapter, policy=message)
        if known is not None:
            request.expected_generation = known.generation
        answer = self._connection.call(self._connection.store.SetAdapter, request)
        return policies.to_words(answer.adapter.policy)

    def set_alias(self, adapter: str, alias: str, version: int | tuple[int, int] | None,
                  expected_generation: int | None = None) -> int:
        """Moves ``adapter@alias`` to a version (number of the current run, or (run, number)); None removes it.

        Returns:
            the alias' new generation.

        Raises:
            LorryError: ALIAS_MOVED when it is not where ``expected_generation`` saw it; NOT_FOUND.
        """
        request = store_pb2.SetAliasRequest(adapter=adapter, alias=alias)
        if version is not None:
            request.version.CopyFrom(_ref(adapter, version))
        if expected_generation is not None:
            request.expected_generation = expected_generation
        generation: int = self._connection.call(self._connection.store.SetAlias, request).alias.generation
        return generation

    def aliases(self, adapter: str) -> dict[str, tuple[int, int]]:
        """Alias → (run, number). Raises LorryError."""
        answer = self._connection.call(self._connection.store.GetAdapter, store_pb2.GetAdapterRequest(name=adapter))
        return {a.name: (a.version.run, a.version.number) for a in answer.aliases}

    def delete(self, adapter: str, version: int | tuple[int, int]) -> None:
        """Deletes a version: a number of the current run, or (run, number). Raises LorryError: IN_USE names who holds it."""
        run, number = version if isinstance(version, tuple) else (self._adapter(adapter).current_run, version)
        request = store_pb2.DeleteVersionRequest(version=_ref(adapter, (run, number)))
        self._connection.call(self._connection.store.DeleteVersion, request)

    def release_holder(self, holder: str) -> None:
        """Lets go of every version that a holder keeps which will not come back, such as the orchestrator of a fleet that is
        gone: ``orchestrator:NAME``, where its ``--cluster`` was NAME. One that is still there takes its records for lost.

        Raises:
            LorryError: HOLDS_STALE: it counts higher than a holder that began before now, which the message says.
        """
        # A holder counts within an incarnation, which is the second in which it began (sync-orchestrator's main).
        request = store_pb2.SetHoldsRequest(holder=holder, incarnation=max(1, int(time.time()) - _BEGIN_OF_2026), revision=1)
        self._connection.call(self._connection.store.SetHolds, request)

    def rollback(self, adapter: str, version: int | tuple[int, int] | None, pool: str = "") -> None:
        """Pins a pool to a stored version; None lifts the pin. Raises LorryError."""
        request = sync_pb2.SetOverrideRequest(adapter=adapter, pool=pool, request_id=uuid.uuid4().hex)
        if version is not None:
            request.version.CopyFrom(_ref(adapter, version))
        self._connection.call(self._connection.sync.SetOverride, request)

    def retry(self, adapter: str, version: int | tuple[int, int]) -> None:
        """Lets engines try a version again that they refused, or died or hung of; one of each kind goes first."""
        request = sync_pb2.LiftVerdictRequest(version=_ref(adapter, version))
        self._connection.call(self._connection.sync.LiftVerdict, request)

    def mark(self, member: str, mark: Literal["excluded", "included", "dead"], why: str = "") -> None:
        """Says that syncs do not count on an engine, that they do again, or that its door answers nobody any more.

        Args:
            member: its name, as :meth:`status` lists it.
            mark: with ``"dead"`` you promise that the door answers nobody: barriers no longer wait for it.
            why: for people.

        Raises:
            LorryError: MEMBER_UNKNOWN.
        """
        request = sync_pb2.MarkMemberRequest(member=member, mark=f"MARK_{mark.upper()}", reason=why)
        self._connection.call(self._connection.sync.MarkMember, request)

    def lease(self, selector: str, holder: str, ttl_s: float, pool: str = "") -> Lease:
        """Leases a version for ``ttl_s`` seconds from now; asked again it is renewed, and ``loaded`` counted anew.

        Args:
            selector: ``"policy"`` (latest), ``"policy@12"``, ``"policy@r2.12"``, ``"policy@eval"``, ``"policy@newest"``.
            holder: who leases, a name of your own; a selector that moved on makes it another lease of the same holder.

        Raises:
            LorryError: NO_SLOT names what takes the room; UNKNOWN_VERSION, UNKNOWN_ADAPTER, UNKNOWN_POOL.
        """
        request = sync_pb2.ResolveRequest(selector=selector, pool=pool, holder=holder, ttl_ms=max(1, int(ttl_s * 1000)))
        got = self._connection.call(self._connection.sync.Resolve, request)
        names = {fleet_pb2.EngineKind.Name(n.kind).removeprefix("ENGINE_KIND_"): n.engine_name
                 for n in got.engine_names}
        return Lease(got.version.adapter, got.version.run, got.version.number, got.digest, names, got.loaded,
                     got.members)

    def release(self, selector: str, holder: str, pool: str = "") -> int:
        """Ends the holder's lease of a number (``"policy@12"``), or all of the adapter's (``"policy"``). Raises LorryError.

        Returns:
            how many leases ended.
        """
        request = sync_pb2.ResolveRequest(selector=selector, pool=pool, holder=holder, ttl_ms=0)
        released: int = self._connection.call(self._connection.sync.Resolve, request).released
        return released

    def status(self) -> dict[str, Any]:
        """What the orchestrator sees, as plain dictionaries (``lorry.sync.v1.GetStatusResponse``). Raises LorryError."""
        answer = self._connection.call(self._connection.sync.GetStatus, sync_pb2.GetStatusRequest())
        plain: dict[str, Any] = json_format.MessageToDict(answer, preserving_proto_field_name=True)
        return plain

    def close(self) -> None:
        """Ends the connections."""
        self._connection.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _adapter(self, name: str) -> store_pb2.Adapter:
        request = store_pb2.GetAdapterRequest(name=name)
        found: store_pb2.Adapter = self._connection.call(self._connection.store.GetAdapter, request).adapter
        return found


def _ref(adapter: str, version: int | tuple[int, int]) -> adapter_pb2.VersionRef:
    run, number = version if isinstance(version, tuple) else (0, version)
    return adapter_pb2.VersionRef(adapter=adapter, run=run, number=number)


def _info(version: adapter_pb2.Version) -> VersionInfo:
    return VersionInfo(version.ref.adapter, version.ref.run, version.ref.number, version.digest, version.image_bytes,
                       version.stored_at_ms)
