"""Another user of this machine, as services and pods are: nothing in the environment, often no home, a root that is read-only.

    with Stranger(tmp_path / "scratch") as stranger:
        subprocess.run([*stranger.enter(), bin_dir / "lorry", "up"])
        stranger.scratch, stranger.shared  # what it may write to: this folder, and what it finds as /dev/shm

Needs root, and mounts of its own; `missing()` says why there are none.
"""

from __future__ import annotations

import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from testing.engines import ROOT

UID = 65532
_OWN_MOUNTS = ["unshare", "--mount", "--propagation=private"]


def missing() -> str:
    """Why this process cannot become one; empty: it can."""
    if os.geteuid() != 0:
        return "only root may become another user"
    done = subprocess.run([*_OWN_MOUNTS, "mount", "-o", "remount,bind,ro", "/"], capture_output=True, text=True, check=False)
    return done.stderr


class Stranger:
    def __init__(self, scratch: pathlib.Path, home: pathlib.Path | None = None) -> None:
        """`home`: what the list of users says of it; None: the list does not know this user."""
        self.scratch = scratch.resolve()
        self.scratch.mkdir(parents=True, exist_ok=True)
        os.chown(self.scratch, UID, UID)
        # Beside the folder that the stranger may write to: nothing in it is root's to trust.
        self._users = self.scratch.with_name(self.scratch.name + ".passwd")
        itself = f"stranger:x:{UID}:{UID}::{home}:/bin/sh\n" if home else ""
        self._users.write_text(pathlib.Path("/etc/passwd").read_text() + itself)
        self.shared = pathlib.Path(tempfile.mkdtemp(prefix="lorry-stranger-", dir="/dev/shm"))
        self.shared.chmod(0o1777)

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.shared, ignore_errors=True)

    def enter(self, environment: Mapping[str, str] | None = None) -> list[str]:
        """The words before a command that shall run as this user, with nothing in the environment but a path and what is given."""
        within = ["env", "-i", "PATH=/usr/bin:/bin", *(f"{key}={value}" for key, value in (environment or {}).items())]
        become = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        run = shlex.join(["exec", *become, *within]) + ' "$@"'
        return [*_OWN_MOUNTS, "sh", "-euc", "\n".join([*self._mounts(), "mount -o remount,bind,ro /", "cd /", run]), "sh"]

    def _mounts(self) -> list[str]:
        # A checkout, its Python and a test's folder may lie where their owner alone can enter.
        seen = {path.resolve() for path in (ROOT, ROOT / ".venv", ROOT / ".cache", pathlib.Path(sys.base_prefix))}
        places = [(path, path) for path in sorted({*seen, self.scratch})]
        places += [(self._users, pathlib.Path("/etc/passwd")), (self.shared, pathlib.Path("/dev/shm"))]
        lines = ["mount -t tmpfs none /mnt"]
        for i, (source, _) in enumerate(places):
            make = "mkdir" if source.is_dir() else "touch"
            lines += [f"{make} /mnt/{i}", f"mount --bind {shlex.quote(str(source))} /mnt/{i}"]
        lines += [f"mount -t tmpfs -o mode=755 none {shlex.quote(str(path))}" for path in sorted(_closed([s for s, _ in places]))]
        for i, (_, target) in enumerate(places):
            quoted = shlex.quote(str(target))
            lines += [f"[ -e {quoted} ] || mkdir -p {quoted}", f"mount --bind /mnt/{i} {quoted}"]
        return lines


def _closed(paths: Sequence[pathlib.Path]) -> set[pathlib.Path]:
    """The uppermost folder above each that others cannot enter."""
    closed = set()
    for path in paths:
        above = [folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001]
        closed.update(above[:1])
    return closed
