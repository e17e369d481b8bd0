"""Errors that a trainer can react to."""

from __future__ import annotations

from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status


class LorryError(RuntimeError):
    """Something Lorry refused or could not do.

    Attributes:
        reason: a stable word of docs/ERRORS.md, such as ``VERSION_CONFLICT``; empty for plain transport errors.
        code: the canonical gRPC code's name, such as ``FAILED_PRECONDITION``.
    """

    def __init__(self, message: str, reason: str = "", code: str = "UNKNOWN") -> None:
        super().__init__(f"{reason}: {message}" if reason else message)
        self.reason = reason
        self.code = code
        self.message = message


class RunFenced(LorryError):
    """Another process opened a newer run of this adapter; this one must stop publishing."""


class AttemptFenced(LorryError):
    """A newer attempt to store this version has begun in the same run: this one is over, the run is not."""


class VersionConflict(LorryError):
    """The number is taken by other bytes, or is below the run's newest."""


class Refused(LorryError):
    """The adapter is not something engines can be trusted with; the message says what to change."""


class SyncFailed(LorryError):
    """The version is stored, but no engine serves it, nor will without a change; the reason says why."""


class Superseded(LorryError):
    """A newer version was decided instead. Attribute ``by``: its number."""

    def __init__(self, message: str, by: int) -> None:
        super().__init__(message, "SUPERSEDED", "ABORTED")
        self.by = by

    def __reduce__(self) -> tuple[Any, ...]:
        # An error that comes out of another process (a pool's worker, a Ray actor) is made again there, by default of its text alone.
        return type(self), (self.message, self.by), self.__dict__


class Cancelled(LorryError):
    """``cancel()`` was called, or Ctrl-C."""


_BY_REASON: dict[str, type[LorryError]] = {
    "RUN_FENCED": RunFenced,
    "RUN_CONFLICT": RunFenced,
    "ATTEMPT_FENCED": AttemptFenced,
    "VERSION_CONFLICT": VersionConflict,
    "VERSION_TOO_OLD": VersionConflict,
}


def from_rpc_error(error: grpc.RpcError) -> LorryError:
    """The Lorry error behind a gRPC error, with its reason where the server gave one."""
    code = error.code().name if isinstance(error, grpc.Call) else "UNKNOWN"
    details = (error.details() or "") if isinstance(error, grpc.Call) else str(error)
    reason = ""
    try:
        status = rpc_status.from_call(error) if isinstance(error, grpc.Call) else None
    except ValueError:  # the trailer disagrees with the status: trust the status
        status = None
    for detail in status.details if status is not None else []:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            reason = info.reason
    if code == "UNAUTHENTICATED":
        reason = reason or code  # refused by gRPC's security layer, which has no room for a reason
        details += "; what is shown comes from token= or token_file=, else from LORRY_TOKEN or LORRY_TOKEN_FILE, else from `lorry up`"
    if code == "DEADLINE_EXCEEDED" and not reason:
        details = "the service did not answer in time"  # gRPC says the code's name again
    return of(details, reason, code)


def of(message: str, reason: str, code: str) -> LorryError:
    """The Lorry error of that reason and gRPC status name."""
    kind = _BY_REASON.get(reason, Refused if code == "INVALID_ARGUMENT" else LorryError)
    return kind(message, reason, code)
