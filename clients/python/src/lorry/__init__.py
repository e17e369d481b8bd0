"""Lorry: freshly trained LoRA adapters, in every inference engine a moment later.

    import lorry

    with lorry.open_run("math-policy") as run:
        for step in range(100):
            train(model)
            run.publish(model, version=step).wait("serving")

Services are named by ``LORRY_STORE`` and ``LORRY_ORCHESTRATOR`` (``host:port``) or by arguments.
"""

from lorry.admin import Admin, Lease, VersionInfo
from lorry.connection import Connection
from lorry.errors import (
    Cancelled,
    LorryError,
    Refused,
    RunFenced,
    Superseded,
    SyncFailed,
    VersionConflict,
)
from lorry.handle import PublishHandle, Serving, Status
from lorry.image import Shard
from lorry.run import Run, open_run

__all__ = [
    "Admin", "Cancelled", "Connection", "Lease", "LorryError", "PublishHandle", "Refused", "Run", "RunFenced",
    "Serving", "Shard", "Status", "Superseded", "SyncFailed", "VersionConflict", "VersionInfo", "open_run",
]
