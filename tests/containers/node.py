"""A node: a bridge, pods with a network namespace each, and containers in them, as a kubelet or compose would start them.

Everything lies in the namespaces that `run` made, so nothing has to be taken back.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import pathlib
import re
import subprocess
import sys
import urllib.error
import urllib.request

from images import Image
from sandbox import Mount, Process, Sandbox
from testing.waiting import until

NETWORKS = {"ipv4": ipaddress.ip_network("10.88.0.0/24"), "ipv6": ipaddress.ip_network("fd88::/64")}
BRIDGE = "lorry0"
PROBE_S = 5


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@dataclasses.dataclass
class Container:
    """A container as its manifest says it, in the words of both kinds of manifest."""

    name: str
    image: Image | None  # None: this machine's own root, for the fake engine and the trainer
    command: list[str]
    mounts: list[Mount] = dataclasses.field(default_factory=list)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    user: int = 0
    groups: tuple[int, ...] = ()
    read_only: bool = False
    drop_capabilities: bool = False
    default_profile: bool = False
    memory_bytes: int = 0


class Pod:
    """A network namespace with one address. `names`: under which the others find it. `network`: its own name on the node."""

    def __init__(self, node: Node, name: str, names: list[str]) -> None:
        self.node, self.name, self.names = node, name, names
        self.address = node.next_address()
        self.processes: dict[str, Process] = {}
        self.network = f"{name}.{node.count}"
        inside, outside = f"e{node.count}", f"v{node.count}"
        ip("netns", "add", self.network)
        ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", self.network)
        ip("link", "set", outside, "master", BRIDGE, "up")
        ip("-n", self.network, "link", "set", "lo", "up")
        ip("-n", self.network, "link", "set", inside, "up")
        ip("-n", self.network, "addr", "add", f"{self.address}/{node.network.prefixlen}", "dev", inside, *node.address_flags)

    def sandbox(self, container: Container) -> Sandbox:
        return Sandbox(
            container.image.layers if container.image else [], container.mounts, container.environment, self.node.hosts,
            self.network, container.user, container.groups, container.read_only, container.drop_capabilities,
            container.default_profile, container.memory_bytes,
        )

    def start(self, container: Container) -> Process:
        log = self.node.folder / f"{self.network}-{container.name}.log"
        process = Process(f"{self.network}/{container.name}", self.sandbox(container), container.command, log)
        self.processes[container.name] = process
        return process

    def run(self, container: Container) -> subprocess.CompletedProcess[str]:
        return self.sandbox(container).run(container.command)

    def url(self, port: int, path: str) -> str:
        host = f"[{self.address}]" if self.address.version == 6 else self.address
        return f"http://{host}:{port}{path}"

    def metrics(self, port: int) -> str:
        with urllib.request.urlopen(self.url(port, "/metrics"), timeout=PROBE_S) as reply:
            return reply.read().decode()

    def get(self, port: int, path: str) -> int:
        """Status of an HTTP GET that a kubelet's probe sends from the node; OSError while nobody listens."""
        try:
            with urllib.request.urlopen(self.url(port, path), timeout=PROBE_S) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code

    def await_probe(self, container: str, port: int, path: str) -> None:
        """Until a GET answers 200; fails at once when the container ends."""
        process = self.processes[container]

        def answers() -> bool:
            assert process.is_running(), f"{process.label} ended:\n{process.log()}"
            return self.get(port, path) == 200

        try:
            until(answers, f"{process.label} answers {path}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{process.log()}") from None


class Node:
    """`family`: "ipv4" or "ipv6"; pods have addresses of that one family alone."""

    def __init__(self, folder: pathlib.Path, family: str = "ipv4") -> None:
        self.folder, self.network = folder, NETWORKS[family]
        self.count = 0
        self._hosts = iter(self.network.hosts())
        # Nobody else is here who could have the address: it can be used at once.
        self.address_flags = ["nodad"] if self.network.version == 6 else []
        self.pods: list[Pod] = []
        self.hosts = folder / "hosts"
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("link", "set", BRIDGE, "up")
        ip("link", "set", "lo", "up")
        ip("addr", "add", f"{self.next_address()}/{self.network.prefixlen}", "dev", BRIDGE, *self.address_flags)
        self._write_hosts()

    def next_address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        self.count += 1
        return next(self._hosts)

    def pod(self, name: str, names: list[str]) -> Pod:
        made = Pod(self, name, names)
        self.pods.append(made)
        self._write_hosts()
        return made

    def _write_hosts(self) -> None:
        """The cluster's name server, as a file that every container has. It is written in place, under their mounts."""
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        lines += [f"{pod.address} {name}" for pod in self.pods for name in pod.names]
        self.hosts.write_text("\n".join(lines) + "\n")

    def stop(self) -> dict[str, int]:
        """Ends every container, the last first; their exit statuses."""
        statuses: dict[str, int] = {}
        for pod in reversed(self.pods):
            for process in reversed(pod.processes.values()):
                statuses[process.label] = process.stop()
        return statuses

    def close(self) -> None:
        for pod in self.pods:
            for process in pod.processes.values():
                process.kill()
            ip("netns", "del", pod.network)
        ip("link", "del", BRIDGE)

    def print_logs(self) -> None:
        for pod in self.pods:
            for process in pod.processes.values():
                print(f"===== {process.label}\n{process.log()}")


class Trainer:
    """A machine of its own that runs the Python client: this repository's, with this machine's Python."""

    def __init__(self, node: Node, python_path: str, addresses: dict[str, str]) -> None:
        self.pod = node.pod("trainer", ["trainer"])
        self._environment = {"PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1", **addresses}

    def publish(self, folder: pathlib.Path, version: int, credentials: dict[str, str], **more: object) -> dict:
        """Publishes a directory, with `more` as trainer.py knows it, and waits until it is served: door → what it answered."""
        script = pathlib.Path(__file__).with_name("trainer.py")
        said = json.dumps({"credentials": credentials, **more})
        done = self.pod.run(Container(
            "trainer", None, [sys.executable, str(script), str(folder), str(version), said], environment=self._environment,
        ))
        assert done.returncode == 0, re.sub(r"\n\s+", "\n ", done.stdout[-3000:] + done.stderr[-6000:])
        return json.loads(done.stdout.splitlines()[-1])
