"""Lorry's own transfer, as transfer_bench serves and receives it: from a stored image into image files, each leaf checked as it comes."""

from __future__ import annotations

import pathlib
import signal
import subprocess

import numpy as np
from peer import Peer as Base

ROWS = {"Lorry": {"kind": "ucx-shm"}, "Lorry, TCP alone": {"kind": "ucx-net"}, "Lorry, gRPC stream": {"kind": "grpc"}}
PACKAGES = ()
RECEIVERS = 4
PRINTS = ("hashed",)  # it never leaves the checking out


class Peer(Base):
    def make_image(self) -> np.ndarray:
        return np.empty(0, np.uint8)

    def fill(self, number: int) -> str:
        return ""

    def prepare(self) -> None:
        if self.job.sends:
            self._start("serve", self.job.settings["kind"])
            self.exchange(self._line())
        else:
            self._start("receive", self.exchange("")[0], self.job.settings["kind"])
            self._line()

    def transfer(self) -> None:
        if not self.job.sends:
            self._program.send_signal(signal.SIGUSR1)
            if float(self._line()) <= 0:
                raise RuntimeError("the transfer failed")

    def verify(self) -> str:
        return ""

    def close(self) -> None:
        if hasattr(self, "_program"):
            self._program.kill()
            self._program.wait()

    def _start(self, *arguments: str) -> None:
        program = str(pathlib.Path(self.job.bin_dir) / "transfer_bench")
        self._program = subprocess.Popen([program, *arguments, str(self.job.bytes)], stdout=subprocess.PIPE, text=True)

    def _line(self) -> str:
        line = self._program.stdout.readline().strip()
        if not line:
            raise RuntimeError("transfer_bench ended")
        return line
