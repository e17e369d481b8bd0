"""ucx_perftest: UCX's own active messages between two processes, with the settings and the peer errors that Lorry has. No files."""

from __future__ import annotations

import os
import re
import socket
import subprocess

import numpy as np
from peer import Peer as Base

# tcp finds the peer; get_zcopy keeps the bytes off it, as Lorry does by having no such lane.
COMMON = {"UCX_NET_DEVICES": "lo", "UCX_RNDV_SCHEME": "get_zcopy", "UCX_WARN_UNUSED_ENV_VARS": "n"}
ROWS = {"ucx_perftest": {"UCX_TLS": "posix,tcp", "UCX_MM_ERROR_HANDLING": "y", "UCX_MM_FIFO_SIZE": "256"},
        "ucx_perftest, TCP alone": {"UCX_TLS": "tcp"}}
PACKAGES = ()
RECEIVERS = 1
PRINTS = ("bare",)
MESSAGE = 4 << 20
DEADLINE_S = 60
TRIES = 10


class Peer(Base):
    def make_image(self) -> np.ndarray:
        return np.empty(0, np.uint8)

    def fill(self, number: int) -> str:
        return ""

    def verify(self) -> str:
        return ""

    def prepare(self) -> None:
        self._environment = os.environ | COMMON | self.job.settings

    def transfer(self) -> float | None:
        """What the program says of itself: the seconds that the job's bytes take at its mean speed."""
        if self.job.sends:
            return None
        for _ in range(TRIES):  # the port may be taken by someone else meanwhile
            answer = self._run_once()
            found = re.search(r"^Final:(.*)", answer, re.MULTILINE)
            if found:
                return self.job.bytes / (float(found.group(1).split()[5]) * (1 << 20))
        raise RuntimeError(f"no figure: {answer[-200:]}")

    def _run_once(self) -> str:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        size = min(MESSAGE, self.job.bytes)
        server = subprocess.Popen(["ucx_perftest", "-p", port], env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            client = ["ucx_perftest", "127.0.0.1", "-p", port, "-t", "ucp_am_bw", "-s", str(size), "-n", str(max(50, self.job.bytes // size)),
                      "-w", "20", "-e", "-E", "sleep", "-O", "8"]
            return subprocess.run(client, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=DEADLINE_S, check=False).stdout
        finally:
            server.kill()
            server.wait()
