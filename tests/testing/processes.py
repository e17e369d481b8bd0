"""What /proc tells of processes."""

from __future__ import annotations

import pathlib
import uuid
from collections.abc import Mapping


def footprint(pid: int) -> tuple[int, int]:
    """Bytes of memory of its own, and descriptors. Raises OSError where it has ended."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    descriptors = len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))
    own = [int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon:")]
    return sum(own), descriptors


class Mark:
    """A variable in the environment of a program that is started with `environment`, and so of all that it starts."""

    def __init__(self) -> None:
        self._name, self._value = "LORRY_TEST_MARK", str(uuid.uuid4())

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        return {**base, self._name: self._value}

    def processes(self) -> dict[int, str]:
        """Those that bear it, children of children among them, and their command lines."""
        found, mark = {}, f"{self._name}={self._value}".encode()
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it ended meanwhile
        return found
