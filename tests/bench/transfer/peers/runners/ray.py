"""Ray's object store: the sender puts, each receiver gets. An array of numpy lies in shared memory and is not copied; tensors of torch are."""

from __future__ import annotations

import os

from peer import Peer as Base
from peer import hashed, tensors_of

ROWS = {"Ray object store, numpy, mapped": {"what": "mapped"}, "Ray object store, numpy, and a copy": {"what": "copied"},
        "Ray object store, state dict of torch": {"what": "torch"}}
PACKAGES = ("ray==2.60.0", "msgpack==1.2.4")
RECEIVERS = 4
PRINTS = ("bare", "hashed")
# A version, the one before it that is being freed, and some room.
STORE_BYTES = 256 << 20


class Peer(Base):
    def prepare(self) -> None:
        os.environ["RAY_AUTH_MODE"] = "disabled"  # every process would look for a token before the first has written it
        import ray

        self._ray, self._got = ray, [self.image]
        options = {"namespace": "peers", "log_to_driver": False, "configure_logging": False, "_node_ip_address": "127.0.0.1"}
        if self.job.sends:
            context = ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=3 * self.job.bytes + STORE_BYTES,
                               _temp_dir=self.job.folder, _plasma_directory=self.job.memory, **options)

            @ray.remote(num_cpus=0)
            class Newest:
                """Hands references to other programs; while it has one, the object stays."""

                def put(self, references: list) -> None:
                    self.references = references

                def get(self) -> list:
                    return self.references

            self._newest = Newest.options(name="newest").remote()
            ray.get(self._newest.put.remote([]))
            self.exchange(context.address_info["address"])
        else:
            ray.init(address=self.exchange("")[0], **options)
            self._newest = ray.get_actor("newest")

    def transfer(self) -> None:
        what = self.job.settings["what"]
        if self.job.sends:
            reference = self._ray.put(self._state() if what == "torch" else self.image)
            self._ray.get(self._newest.put.remote([reference]))
            self.exchange("")
            return
        self._got = []
        self.exchange("")
        got = self._ray.get(self._ray.get(self._newest.get.remote())[0])
        if what == "mapped":
            self._got = [got]
        elif what == "copied":
            self.image[:] = got
            self._got = [self.image]
        else:
            self._got = [got[name].numpy() for name in sorted(got)]

    def verify(self) -> str:
        return hashed(self._got)

    def close(self) -> None:
        if hasattr(self, "_ray"):
            self._ray.shutdown()

    def _state(self) -> dict:
        import torch

        return {name: torch.from_numpy(part) for name, part in tensors_of(self.image).items()}
