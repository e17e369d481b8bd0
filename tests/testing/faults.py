"""Weights that some engines cannot bear, and what fake engines write down while they live and die.

    faults = Faults(tmp_path, "a", "b")
    engine = engines.fake("sglang", model, name="a", respawn=True, switches=faults.switches("a"))
    faults.mark(adapter_dir, DIE_AT_LOAD)              # on every engine; mark(..., on=["a"]) on one
    faults.deaths(adapter_dir)                         # how many engines died of it
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

from testing.engines import ROOT

sys.path.append(str(ROOT / "tests" / "fakes"))
from engine_core import DIE_AT_LOAD, DIE_AT_USE, HANG_AT_LOAD, digest_of  # noqa: E402

__all__ = ["DIE_AT_LOAD", "DIE_AT_USE", "HANG_AT_LOAD", "Faults", "digest_of"]


class Faults:
    """A file of bad weights and a journal for each engine; both outlive its boots. One thread marks, any may read."""

    def __init__(self, folder: pathlib.Path, *engines: str) -> None:
        self._folder = folder
        self._marked: dict[str, dict[str, str]] = {engine: {} for engine in engines}
        for engine in engines:
            self._write(engine)

    def switches(self, engine: str) -> dict[str, str]:
        """What the fake is to be started with."""
        return {"bad_weights": os.fspath(self._bad(engine)), "journal": os.fspath(self._journal(engine))}

    def mark(self, adapter_dir: pathlib.Path, wrong: str, on: Iterable[str] = ()) -> None:
        """From now on the engines do with these weights what `wrong` says: see Switches.bad_weights. Empty: nothing."""
        for engine in on or self._marked:
            self._marked[engine][digest_of(adapter_dir)] = wrong
            self._write(engine)

    def events(self, kind: str = "", engine: str = "") -> list[dict[str, Any]]:
        """What the engines wrote down, in order; each line has `engine`."""
        found: list[dict[str, Any]] = []
        for name in [engine] if engine else self._marked:
            path = self._journal(name)
            lines = path.read_text().splitlines() if path.exists() else []
            found += [{"engine": name, **json.loads(line)} for line in lines]
        return sorted((e for e in found if kind in ("", e["event"])), key=lambda e: e["at"])

    def deaths(self, adapter_dir: pathlib.Path | None = None, engine: str = "") -> int:
        """Of these weights; or of any."""
        digest = digest_of(adapter_dir) if adapter_dir else ""
        return sum(digest in ("", e["digest"]) for e in self.events("died", engine))

    def _bad(self, engine: str) -> pathlib.Path:
        return self._folder / f"bad-weights-{engine}.json"

    def _journal(self, engine: str) -> pathlib.Path:
        return self._folder / f"journal-{engine}"

    def _write(self, engine: str) -> None:
        """At once whole: an engine may read it meanwhile."""
        path = self._bad(engine)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(self._marked[engine]))
        new.rename(path)
