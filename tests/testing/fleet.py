"""Lorry's three services on loopback, for tests and the demo: each one a process that can be stopped, killed and started again.

    with fleet.Fleet(bin_dir, folder, {"a": sglang.url, "b": vllm.url}) as lorry:
        run = lorry_client.open_run("policy", **lorry.addresses())
        lorry.proxies["a"].kill(); lorry.proxies["a"].start().wait_ready()

A service keeps its ports over restarts. Nothing here is safe to share between threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence

from testing import metrics
from testing.engines import free_port
from testing.nodes import OtherNode

# Restoring a database and binding ports takes milliseconds; two cores that compile beside it take seconds.
READY_DEADLINE_S = 60.0
STOP_DEADLINE_S = 40.0


class ServiceFailed(RuntimeError):
    """A service ended, or was not ready, while it was awaited; the text holds the end of its log."""


class Service:
    """One process. `name` is its binary's; `label` tells several of one kind apart."""

    def __init__(
        self,
        binary: pathlib.Path,
        label: str,
        folder: pathlib.Path,
        flags: Mapping[str, object],
        enter: Sequence[str] = (),
    ) -> None:
        """`enter`: words before the command, as those of testing.nodes."""
        self.label = label
        self.folder = folder
        self.data_dir = folder / "data"
        self.log_path = folder / "log"
        self.ready_file = folder / "ready.json"
        self.addresses: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        self.binary = binary
        self.enter = list(enter)
        self.flags = {**flags, "data-dir": self.data_dir, "ready-file": self.ready_file}  # of the next start
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.label} was not started"
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Service:
        """Starts the process without waiting for it."""
        assert not self.is_running(), f"{self.label} runs already"
        self.ready_file.unlink(missing_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.enter, os.fspath(self.binary), *(f"--{k}={v}" for k, v in self.flags.items())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | self.environment,
            )
        return self

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S) -> Service:
        """Until its ready file is there. Raises ServiceFailed."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            if self.ready_file.exists():
                self.addresses = json.loads(self.ready_file.read_text())
                return self
            if not self.is_running():
                raise ServiceFailed(f"{self.label} ended while starting:\n{self.log_tail()}")
            self._wait(0.02)
        raise ServiceFailed(f"{self.label} was not ready in {deadline_s:.0f} s:\n{self.log_tail()}")

    def stop(self) -> int:
        """SIGTERM, and the exit status that the drain ended with."""
        if not self.is_running():
            return self._process.returncode if self._process else 0
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(signal.SIGTERM)
        if not self._wait(STOP_DEADLINE_S):
            self.kill()
            raise ServiceFailed(f"{self.label} did not end after SIGTERM:\n{self.log_tail()}")
        return self._process.returncode

    def kill(self) -> None:
        """SIGKILL, at whatever it was doing."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()

    def suspend(self) -> None:
        """SIGSTOP: alive for the kernel, silent for its peers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.is_running():
            assert self._process is not None
            self._process.send_signal(signal.SIGCONT)

    def wait_dead(self, deadline_s: float = 30.0) -> int:
        """Until it ended by itself; its exit status. Raises ServiceFailed."""
        assert self._process is not None
        if not self._wait(deadline_s):
            raise ServiceFailed(f"{self.label} still runs:\n{self.log_tail()}")
        return self._process.returncode

    def metrics(self) -> str:
        with urllib.request.urlopen(
            f"http://{self.addresses['admin']}/metrics", timeout=10
        ) as reply:
            return reply.read().decode()

    def samples(self, prefix: str) -> list[float]:
        """Of the metrics' lines that begin so."""
        return metrics.samples(self.metrics(), prefix)

    def sent(self) -> int:
        """Image bytes that others have had from it."""
        return metrics.sent(self.metrics())

    def log_tail(self, lines: int = 40) -> str:
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _wait(self, seconds: float) -> bool:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None


class Fleet:
    """Store, orchestrator, and one proxy for each engine. `engines`: member → URL."""

    def __init__(
        self,
        bin_dir: os.PathLike[str],
        folder: os.PathLike[str],
        engines: Mapping[str, str],
        store_flags: Mapping[str, object] | None = None,
        proxy_flags: Mapping[str, object] | None = None,
        orchestrator_flags: Mapping[str, object] | None = None,
    ) -> None:
        bins, self.folder = pathlib.Path(bin_dir), pathlib.Path(folder)
        self._store_at, self._orchestrator_at = (
            f"127.0.0.1:{free_port()}",
            f"127.0.0.1:{free_port()}",
        )
        self.store = Service(
            bins / "adapter-store",
            "store",
            self.folder / "store",
            {
                "listen": self._store_at,
                "admin-listen": f"127.0.0.1:{free_port()}",
                **(store_flags or {}),
            },
        )
        self.orchestrator = Service(
            bins / "sync-orchestrator",
            "orchestrator",
            self.folder / "orchestrator",
            {"listen": self._orchestrator_at, "store": self._store_at, **(orchestrator_flags or {})},
        )
        self._proxy_flags = dict(proxy_flags or {})
        # Images on a tmpfs of their own: two fleets on one machine share nothing.
        self.image_root = pathlib.Path("/dev/shm") / f"lorry-{os.getpid()}-{free_port()}"
        self.proxies = {member: self._proxy(bins, member, url) for member, url in engines.items()}

    def _proxy(self, bins: pathlib.Path, member: str, url: str) -> Service:
        return Service(
            bins / "engine-proxy",
            f"proxy {member}",
            self.folder / f"proxy-{member}",
            {
                "engine": url,
                "member": member,
                "store": self._store_at,
                "orchestrator": self._orchestrator_at,
                "door-listen": f"127.0.0.1:{free_port()}",
                "listen": f"127.0.0.1:{free_port()}",
                "image-dir": self.image_root / member,
                **self._proxy_flags,
            },
        )

    def follower(self, member: str, node: OtherNode) -> Service:
        """A follower of the member's proxy on another node; before anything is started."""
        store_port = self._store_at.rpartition(":")[2]
        # The store is reached from there; what a certificate adds is proved elsewhere.
        self.store.flags |= {
            "listen": f"0.0.0.0:{store_port}",
            "advertise-host": node.host_address,
            "insecure-listen-anywhere": "true",
        }
        proxy = self.proxies[member]
        at = f"{node.address}:{free_port()}"
        proxy.flags["followers"] = at
        flags = {
            "follow": "true",
            "member": member,
            "store": f"{node.host_address}:{store_port}",
            "listen": at,
            "insecure-listen-anywhere": "true",
            "admin-listen": f"{node.address}:{free_port()}",
            "image-dir": proxy.flags["image-dir"],
            "ucx": "false",  # a node of testing.nodes shares this machine's processes, which nodes do not
        }
        return Service(proxy.binary, f"follower of {member}", self.folder / f"follower-{member}", flags, node.enter)

    def services(self) -> list[Service]:
        return [self.store, self.orchestrator, *self.proxies.values()]

    def addresses(self) -> dict[str, str]:
        """Keyword arguments for lorry.open_run and lorry.Admin."""
        return {"store": self._store_at, "orchestrator": self._orchestrator_at}

    def door(self, member: str) -> str:
        """URL of a member's door."""
        return self.proxies[member].addresses["door"]

    def start(self, absent: Sequence[str] = ()) -> Fleet:
        """All but the proxies of the members that are absent."""
        chosen = [s for s in self.services() if s not in [self.proxies[m] for m in absent]]
        for service in chosen:
            service.start()
        for service in chosen:
            service.wait_ready()
        return self

    def close(self) -> None:
        """Stops all, proxies first."""
        for service in reversed(self.services()):
            with contextlib.suppress(ServiceFailed):
                service.stop()
        shutil.rmtree(self.image_root, ignore_errors=True)

    def __enter__(self) -> Fleet:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()
