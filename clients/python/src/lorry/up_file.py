"""The fleet that `lorry up` runs on this machine, found by the file that it writes."""

from __future__ import annotations

import json
import os
import pathlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Up:
    """Its addresses, and the file of its token, which only the user who runs it can read; None each where none runs."""

    store: str | None = None
    orchestrator: str | None = None
    token_file: str | None = None


def path() -> pathlib.Path:
    """$XDG_STATE_HOME/lorry/up.json, else ~/.local/state/lorry/up.json, as for the command line."""
    state = os.environ.get("XDG_STATE_HOME")
    return (pathlib.Path(state) if state else pathlib.Path.home() / ".local" / "state") / "lorry" / "up.json"


def find() -> Up:
    """What `lorry up` runs."""
    try:
        up = json.loads(path().read_text(encoding="utf-8"))
        if _runs(int(up["pid"])):  # a fleet that was killed leaves its file behind
            return Up(str(up["store"]), str(up["orchestrator"]), up.get("token_file"))
    except (OSError, RuntimeError, ValueError, LookupError, TypeError):
        pass
    return Up()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:  # as another user
        return True
    except OSError:
        return False
    return True
