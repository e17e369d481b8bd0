"""Mooncake's Transfer Engine over TCP, between memory that is registered once: the sender writes, or each receiver reads."""

from __future__ import annotations

import json

from peer import Peer as Base

ROWS = {"Mooncake Transfer Engine, TCP, write": {"operation": "write"}, "Mooncake Transfer Engine, TCP, read": {"operation": "read"}}
PACKAGES = ("mooncake-transfer-engine-non-cuda==0.3.13.post1",)
RECEIVERS = 4
PRINTS = ("bare", "hashed")


class Peer(Base):
    def prepare(self) -> None:
        from mooncake.engine import TransferEngine

        self._engine = TransferEngine()
        self._check(self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), "initialize")
        self._check(self._engine.register_memory(self.image.ctypes.data, self.job.bytes), "register_memory")
        words = self.exchange(json.dumps([f"127.0.0.1:{self._engine.get_rpc_port()}", self.image.ctypes.data]))
        self._others = [json.loads(word) for word in (words[1:] if self.job.sends else words[:1])]

    def transfer(self) -> None:
        """Who wrote tells the others; who reads needs to tell nobody."""
        writes = self.job.settings["operation"] == "write"
        if writes == self.job.sends:
            call = self._engine.batch_transfer_sync_write if writes else self._engine.batch_transfer_sync_read
            for name, address in self._others:
                self._check(call(name, [self.image.ctypes.data], [address], [self.job.bytes]), "the transfer")
        if writes:
            self.exchange("")

    @staticmethod
    def _check(status: int, what: str) -> None:
        if status != 0:
            raise RuntimeError(f"{what} failed: {status}")
