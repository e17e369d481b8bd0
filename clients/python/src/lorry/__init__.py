"""Lorry: freshly trained LoRA adapters, in every inference engine a moment later.

    import lorry

    with lorry.open_run("math-policy") as run:
        for step in range(100):
            train(model)
            run.publish(model, version=step).wait("serving")

Services are named by ``LORRY_STORE`` and ``LORRY_ORCHESTRATOR`` (``host:port``) or by arguments; without either the fleet that
``lorry up`` runs on this machine is used.
"""

from lorry._version import __version__
from lorry.admin import AdapterInfo, Admin, Lease, VersionInfo
from lorry.collectives import ALONE
from lorry.connection import Connection
from lorry.credentials import InsecureWarning
from lorry.errors import (
    AttemptFenced,
    Cancelled,
    LorryError,
    Refused,
    RunFenced,
    Superseded,
    SyncFailed,
    VersionConflict,
)
from lorry.fleet import Fleet, attach, local
from lorry.handle import PublishHandle, Serving, Status
from lorry.image import Shard
from lorry.reference import Reference
from lorry.run import Run, open_run

__all__ = [
    "ALONE", "AdapterInfo", "Admin", "AttemptFenced", "Cancelled", "Connection", "Fleet", "InsecureWarning", "Lease", "LorryError",
    "PublishHandle", "Reference", "Refused", "Run", "RunFenced", "Serving", "Shard", "Status", "Superseded", "SyncFailed", "VersionConflict", "VersionInfo",
    "__version__", "attach", "local", "open_run",
]
