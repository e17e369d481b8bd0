"""A safetensors file in memory, which the sender writes and each receiver loads into tensors of its own: what RL frameworks do."""

from __future__ import annotations

from peer import Peer as Base
from peer import hashed, tensors_of

ROWS = {"safetensors file in memory": {}}
PACKAGES = ()
RECEIVERS = 4
PRINTS = ("bare", "hashed")


class Peer(Base):
    def prepare(self) -> None:
        from safetensors import numpy

        self._library = numpy
        self._state = tensors_of(self.image)
        self._path = self.job.path("adapter_model.safetensors")

    def transfer(self) -> None:
        if self.job.sends:
            self._path.unlink(missing_ok=True)  # what an engine may have mapped is not written over
            self._library.save_file(self._state, self._path)
        self.exchange("")
        if not self.job.sends:
            self._state = self._library.load_file(self._path)

    def verify(self) -> str:
        return hashed(self._state[name] for name in sorted(self._state))
