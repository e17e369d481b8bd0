"""One more node on this machine: its own network, with one cable to this one, and its own shared memory.

    with OtherNode() as node:
        service = Service(..., {"listen": f"{node.address}:{port}"}, enter=node.enter)
        node.host_address  # this machine, as the node reaches it

Needs root. What it makes goes with it.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import subprocess

from testing.engines import free_port

_COUNT = itertools.count(1)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class OtherNode:
    def __init__(self) -> None:
        self.name = f"lorry-{os.getpid()}-{next(_COUNT)}"
        # A port that is this process's alone picks a network that no other run of tests has.
        high, low = divmod(free_port() * 4 % 65_536, 256)
        self.host_address, self.address = f"10.{high}.{low}.1", f"10.{high}.{low}.2"
        self._outside = f"lo{free_port()}"
        self._holder: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """A process in its namespaces, which lives as long as the node."""
        assert self._holder is not None
        return self._holder.pid

    @property
    def device(self) -> str:
        """This machine's end of the cable; the node's is `up0`."""
        return self._outside

    @property
    def enter(self) -> list[str]:
        """Words before a command that shall run on the node."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", f"--mount=/proc/{self.pid}/ns/mnt"]

    def bytes_sent(self) -> int:
        """From this machine to the node, so far."""
        counter = pathlib.Path("/sys/class/net") / self._outside / "statistics" / "tx_bytes"
        return int(counter.read_text())

    def cut(self) -> None:
        """Nothing gets through any more; nobody is told."""
        _ip("link", "set", self._outside, "down")

    def mend(self) -> None:
        _ip("link", "set", self._outside, "up")

    def __enter__(self) -> OtherNode:
        script = "mount -t tmpfs tmpfs /dev/shm && echo ready && exec sleep infinity"
        command = ["unshare", "--net", "--mount", "--propagation=private", "sh", "-euc", script]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        try:
            assert self._holder.stdout is not None and self._holder.stdout.readline() == b"ready\n"
            _ip("link", "add", self._outside, "type", "veth", "peer", "name", "up0", "netns", str(self.pid))
            _ip("addr", "add", f"{self.host_address}/30", "dev", self._outside)
            _ip("link", "set", self._outside, "up")
            for words in (
                ["addr", "add", f"{self.address}/30", "dev", "up0"],
                ["link", "set", "up0", "up"],
                ["link", "set", "lo", "up"],
            ):
                subprocess.run([*self.enter, "ip", *words], check=True, capture_output=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # The cable goes with the namespace that holds one of its ends.
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()
            if self._holder.stdout is not None:
                self._holder.stdout.close()
