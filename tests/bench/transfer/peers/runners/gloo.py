"""gloo: torch.distributed on the CPU; one broadcast of the packed image, or one of each tensor."""

from __future__ import annotations

import datetime

from peer import Peer as Base
from peer import tensors_of

ROWS = {"gloo broadcast, packed": {"packed": True}, "gloo broadcast, tensor by tensor": {"packed": False}}
PACKAGES = ()
RECEIVERS = 4
PRINTS = ("bare", "hashed")
DEADLINE = datetime.timedelta(seconds=60)


class Peer(Base):
    def prepare(self) -> None:
        import torch
        import torch.distributed as dist

        here, world = "127.0.0.1", self.job.receivers + 1
        store = dist.TCPStore(here, 0, world, True, DEADLINE, wait_for_workers=False) if self.job.sends else None
        port = int(self.exchange(str(store.port) if store else "")[0])
        if store is None:
            store = dist.TCPStore(here, port, world, False, DEADLINE)
        dist.init_process_group("gloo", store=store, rank=self.job.number, world_size=world, timeout=DEADLINE)
        self._broadcast = dist.broadcast
        whole = [self.image] if self.job.settings["packed"] else tensors_of(self.image).values()
        self._tensors = [torch.from_numpy(part) for part in whole]

    def transfer(self) -> None:
        for tensor in self._tensors:
            self._broadcast(tensor, src=0)
