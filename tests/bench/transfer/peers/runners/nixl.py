"""NIXL over its own UCX, from and into memory that is registered once; the other side is told by a notification, as its users do.

But for TCP alone, its bytes go by process_vm_readv where the system lets one process read another's memory, which Lorry does not ask for.
"""

from __future__ import annotations

import base64
import json
import os

from peer import Peer as Base

# Its progress threads take a core from those who copy; without them whoever waits makes progress itself.
ROWS = {
    "NIXL WRITE, as it comes": {"operation": "WRITE", "thread": True},
    "NIXL READ, as it comes": {"operation": "READ", "thread": True},
    "NIXL WRITE, no progress thread": {"operation": "WRITE", "thread": False},
    "NIXL READ, no progress thread": {"operation": "READ", "thread": False},
    "NIXL WRITE, no progress thread, TCP alone": {"operation": "WRITE", "thread": False, "UCX_TLS": "tcp"},
}
PACKAGES = ("nixl-cu12==1.5.1",)
RECEIVERS = 4
PRINTS = ("bare", "hashed")
HERE = b"here"


class Peer(Base):
    def prepare(self) -> None:
        if "UCX_TLS" in self.job.settings:
            os.environ["UCX_TLS"] = self.job.settings["UCX_TLS"]
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        operation = self.job.settings["operation"]
        self._agent = nixl_agent(str(self.job.number), nixl_agent_config(enable_prog_thread=self.job.settings["thread"]))
        place = (self.image.ctypes.data, self.job.bytes, 0)
        self._agent.register_memory([(*place, "")], "DRAM")
        mine = {"agent": base64.b64encode(self._agent.get_agent_metadata()).decode(), "place": place}
        everyone = [json.loads(word) for word in self.exchange(json.dumps(mine))]
        others = range(1, len(everyone)) if self.job.sends else [0]
        names = [self._agent.add_remote_agent(base64.b64decode(everyone[i]["agent"])) for i in others]
        self._starts = self.job.sends == (operation == "WRITE")
        self._handles = []
        if self._starts:
            local = self._agent.get_xfer_descs([place], "DRAM")
            for number, name in zip(others, names):
                remote = self._agent.get_xfer_descs([tuple(everyone[number]["place"])], "DRAM")
                self._handles.append(self._agent.initialize_xfer(operation, local, remote, name, HERE))
        self._others = len(names)

    def transfer(self) -> None:
        states = [self._agent.transfer(handle, HERE) for handle in self._handles]
        while "PROC" in states:
            os.sched_yield()
            states = [self._agent.check_xfer_state(handle) for handle in self._handles]
        if "ERR" in states:
            raise RuntimeError(f"NIXL says {states}")
        told = 0
        while not self._starts and told < self._others:
            os.sched_yield()
            told += sum(len(words) for words in self._agent.get_new_notifs().values())
