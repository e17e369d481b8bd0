"""One container: layers as its root, its own mounts, processes and IPC, and what it may do as narrow as the manifest says."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shlex
import signal
import subprocess

STOP_DEADLINE_S = 40.0
# What a container runtime gives every container: nothing that the host's programs put there.
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
SHM_DEFAULT = "64m"


@dataclasses.dataclass
class Mount:
    source: pathlib.Path
    target: str
    read_only: bool = False


@dataclasses.dataclass
class Sandbox:
    """What a process sees and may do. `layers`: directories, the uppermost first; empty: this machine's own root."""

    layers: list[pathlib.Path]
    mounts: list[Mount] = dataclasses.field(default_factory=list)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    hosts: pathlib.Path | None = None
    network: str | None = None  # name of a network namespace; None: one of its own with nothing in it
    user: int = 0
    groups: tuple[int, ...] = ()
    read_only: bool = False
    drop_capabilities: bool = False
    upper: pathlib.Path | None = None  # where changes of the root are kept; None: they go with the container
    folder: str = "/"

    def command(self, argv: list[str]) -> list[str]:
        """The words that run `argv` in here."""
        enter = ["nsenter", f"--net=/run/netns/{self.network}"] if self.network else []
        own = ["--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--propagation=private"]
        own += [] if self.network else ["--net"]
        return [*enter, "unshare", *own, "sh", "-euc", self._script(argv)]

    def run(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(argv), capture_output=True, text=True, check=False)

    def _script(self, argv: list[str]) -> str:
        lines = self._own_root() if self.layers else ["root=", "mount -t proc proc /proc"]
        if self.hosts:
            lines += self._bind(Mount(self.hosts, "/etc/hosts", read_only=True))
        # Outer mounts first: one may lie inside another.
        for mount in sorted(self.mounts, key=lambda m: m.target):
            lines += self._bind(mount)
        if self.layers and self.read_only:
            lines.append("mount -o remount,ro $root")
        return "\n".join([*lines, self._exec(argv)])

    def _own_root(self) -> list[str]:
        upper = shlex.quote(str(self.upper)) if self.upper else "/mnt/upper"
        lower = ":".join(map(str, self.layers))
        lines = [
            "mount -t tmpfs none /mnt", "root=/mnt/root", f"mkdir -p {upper} $root",
            # The work directory must be on the same file system as the upper one.
            f"work={upper}.work; mkdir -p $work",
            f"mount -t overlay none -o lowerdir={lower},upperdir={upper},workdir=$work $root",
            "mkdir -p $root/proc $root/sys $root/dev", "mount -t proc proc $root/proc", "mount -t sysfs -o ro sysfs $root/sys",
            "mount -t tmpfs none -o mode=755 $root/dev",
            f"for d in {' '.join(DEVICES)}; do touch $root/dev/$d; mount --bind /dev/$d $root/dev/$d; done",
            "ln -s /proc/self/fd $root/dev/fd", "mkdir $root/dev/shm",
            f"mount -t tmpfs none -o size={SHM_DEFAULT},mode=1777 $root/dev/shm",
        ]
        return lines

    def _bind(self, mount: Mount) -> list[str]:
        make = "mkdir -p" if mount.source.is_dir() else "touch"
        target = f"$root{shlex.quote(mount.target)}"
        parent = f"$root{shlex.quote(os.path.dirname(mount.target))}"
        option = "bind,ro" if mount.read_only else "bind"
        source = shlex.quote(str(mount.source))
        return [f"mkdir -p {parent}", f"[ -e {target} ] || {make} {target}", f"mount -o {option} {source} {target}"]

    def _exec(self, argv: list[str]) -> str:
        words = ["exec"]
        if self.layers:
            words += ["chroot", "$root"]
        who = ["/usr/bin/setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--no-new-privs"]
        who += [f"--groups={','.join(map(str, self.groups))}"] if self.groups else ["--clear-groups"]
        if self.drop_capabilities:
            who += ["--bounding-set=-all", "--inh-caps=-all"]
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **self.environment}
        settings = [f"{key}={value}" for key, value in environment.items()]
        inner = ["/usr/bin/env", "-i", f"--chdir={self.folder}", *settings, *argv]
        return " ".join(words) + " " + shlex.join([*who, *inner])


class Process:
    """A container that runs. Its main process is process 1 of its own namespace, as under any runtime."""

    def __init__(self, label: str, sandbox: Sandbox, argv: list[str], log: pathlib.Path) -> None:
        self.label, self.sandbox, self.log_path = label, sandbox, log
        with log.open("ab") as out:
            self._unshare = subprocess.Popen(sandbox.command(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def is_running(self) -> bool:
        return self._unshare.poll() is None

    def log(self, lines: int = 40) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> None:
        self._unshare.kill()  # and with it, by --kill-child, everything inside
        self._unshare.wait()

    def stop(self) -> int:
        """SIGTERM as the kubelet sends it, and the exit status; kills what does not end."""
        found = subprocess.run(["pgrep", "-P", str(self._unshare.pid)], capture_output=True, text=True, check=False)
        for pid in found.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGTERM)
        try:
            return self._unshare.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.label} did not end after SIGTERM:\n{self.log()}") from None
