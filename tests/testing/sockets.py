"""What a process listens on, as the kernel knows it."""

from __future__ import annotations

import contextlib
import os
import pathlib
from dataclasses import dataclass

_LISTEN = "0A"  # include/net/tcp_states.h


@dataclass(frozen=True, order=True)
class Listener:
    """One listening TCP socket. `host` in hex, as /proc writes it: 0100007F is 127.0.0.1, also behind FFFF0000 in IPv6."""

    port: int
    host: str

    @property
    def on_loopback(self) -> bool:
        return self.host in ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def listeners(pid: int) -> list[Listener]:
    """The listening TCP sockets that a process holds, of both families."""
    inodes = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            target = os.readlink(entry)
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    found = []
    for family in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]:
            local, _, state, *_, inode = line.split()[1:10]
            host, port = local.split(":")
            if state == _LISTEN and inode in inodes:
                found.append(Listener(int(port, 16), host))
    return sorted(found)


def resident_bytes(pid: int) -> int:
    """The memory of a process that is in RAM now."""
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
