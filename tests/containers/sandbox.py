"""One container: layers as its root, its own mounts, processes and IPC, and what it may do as narrow as the manifest says."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import shlex
import signal
import subprocess
import tempfile
import uuid

from testing.waiting import until

STOP_DEADLINE_S = 40.0
# What a container runtime gives every container: nothing that the host's programs put there.
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
SHM_DEFAULT = "64m"
CGROUPS = pathlib.Path("/sys/fs/cgroup")


def memory_controller() -> tuple[pathlib.Path, str] | None:
    """Where groups with a limit of memory are made, and the limit's file; None: this machine lets nobody make any."""
    if (CGROUPS / "memory/cgroup.procs").exists():
        return CGROUPS / "memory", "memory.limit_in_bytes"
    control = CGROUPS / "cgroup.subtree_control"
    if control.exists() and "memory" in control.read_text().split():
        return CGROUPS, "memory.max"
    return None


@functools.cache
def _profile() -> tempfile.TemporaryDirectory:
    """A folder with `seccomp`, which goes with this process."""
    folder = tempfile.TemporaryDirectory(prefix="lorry-seccomp-")
    source = pathlib.Path(__file__).with_name("seccomp.c")
    subprocess.run(["cc", "-static", "-O1", "-o", f"{folder.name}/seccomp", source], check=True)
    os.chmod(folder.name, 0o755)
    return folder


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
    default_profile: bool = False  # of system calls
    memory_bytes: int = 0  # 0: no limit; who outgrows it is killed, as under a kubelet
    upper: pathlib.Path | None = None  # where changes of the root are kept; None: they go with the container
    folder: str = "/"
    group: str = dataclasses.field(default_factory=lambda: f"lorry-test-{uuid.uuid4().hex[:12]}")

    def command(self, argv: list[str]) -> list[str]:
        """The words that run `argv` in here."""
        enter = ["nsenter", f"--net=/run/netns/{self.network}"] if self.network else []
        own = ["--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--propagation=private"]
        own += [] if self.network else ["--net"]
        return [*enter, "unshare", *own, "sh", "-euc", self._script(argv)]

    def run(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(self.command(argv), capture_output=True, text=True, check=False)
        finally:
            self.forget()

    def forget(self) -> None:
        """Once nothing runs in here: nothing of it is left on the machine."""
        made = memory_controller()
        if made and self.memory_bytes:
            until(lambda: self._remove(made[0] / self.group), f"nothing runs in {self.group}")

    @staticmethod
    def _remove(group: pathlib.Path) -> bool:
        with contextlib.suppress(OSError):  # somebody in it is still being killed
            group.rmdir()
        return not group.exists()

    def _script(self, argv: list[str]) -> str:
        lines = self._own_limits() + self._mounts()
        return "\n".join([*lines, self._exec(argv)])

    def _own_limits(self) -> list[str]:
        made = memory_controller()
        if not made or not self.memory_bytes:
            return []
        folder, limit = made[0] / self.group, made[1]
        return [f"mkdir {folder}", f"echo {self.memory_bytes} > {folder}/{limit}", f"echo 0 > {folder}/cgroup.procs"]

    def _mounts(self) -> list[str]:
        lines = self._own_root() if self.layers else ["root=", "mount -t proc proc /proc"]
        if self.hosts:
            lines += self._bind(Mount(self.hosts, "/etc/hosts", read_only=True))
        if self.layers and self.default_profile:
            lines += self._bind(Mount(self._seccomp(), "/.seccomp", read_only=True))
        # Outer mounts first: one may lie inside another.
        for mount in sorted(self.mounts, key=lambda m: m.target):
            lines += self._bind(mount)
        if self.layers and self.read_only:
            lines.append("mount -o remount,ro $root")
        return lines

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

    @staticmethod
    def _seccomp() -> pathlib.Path:
        return pathlib.Path(_profile().name) / "seccomp"

    def _exec(self, argv: list[str]) -> str:
        words = ["exec"]
        if self.layers:
            words += ["chroot", "$root"]
        who = ["/usr/bin/setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--no-new-privs"]
        who += [f"--groups={','.join(map(str, self.groups))}"] if self.groups else ["--clear-groups"]
        if self.drop_capabilities:
            who += ["--bounding-set=-all", "--inh-caps=-all"]
        if self.default_profile:
            who = ["/.seccomp" if self.layers else str(self._seccomp()), *who]
        inner = self.within_environment(argv, f"--chdir={self.folder}")
        return " ".join(words) + " " + shlex.join([*who, *inner])

    def within_environment(self, argv: list[str], *options: str) -> list[str]:
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **self.environment}
        return ["/usr/bin/env", "-i", *options, *(f"{key}={value}" for key, value in environment.items()), *argv]


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
        # Its main process, and with that everything inside: who has become another user outlives --kill-child.
        for pid in self._main():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._unshare.kill()
        self._unshare.wait()
        self.sandbox.forget()

    def _main(self) -> list[int]:
        """The container's main process, by its number out here; nothing once it has ended."""
        found = subprocess.run(["pgrep", "-P", str(self._unshare.pid)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def exec(self, argv: list[str]) -> subprocess.Popen:
        """One more process in the container while that runs, as its user, as a kubelet's hooks and probes are."""
        user = str(self.sandbox.user)
        enter = ["nsenter", f"--target={self._main()[0]}", "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd",
                 f"--setuid={user}", f"--setgid={user}"]
        return subprocess.Popen([*enter, *self.sandbox.within_environment(argv)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> int:
        """SIGTERM as the kubelet sends it, and the exit status; kills what does not end."""
        for pid in self._main():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        try:
            status = self._unshare.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.label} did not end after SIGTERM:\n{self.log()}") from None
        self.sandbox.forget()
        return status
