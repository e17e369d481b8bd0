"""What a fleet of this process leaves in shared memory, where its engines read adapters, and when it may go.

A proxy writes beneath ``/dev/shm/lorry-UID/MEMBER/{versions,manifests}/JOURNAL``. What it believes of that stands in its data directory: once
that is gone no later fleet needs the journal's folders, and only an engine that lists a path in them may yet read them. Other journals' folders,
as those that a ``lorry up`` goes on with, are never touched.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

ROOT = pathlib.Path(f"/dev/shm/lorry-{os.geteuid()}")
# An engine that takes longer to list its adapters is left its files.
_LIST_S = 5.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever $http_proxy says: engines are near


class Leftovers:
    """Of one fleet. Made before its programs start; told of its engines once they run."""

    def __init__(self) -> None:
        self._before = set(ROOT.glob("*/versions/*"))
        self._engine_of: dict[pathlib.Path, str] = {}
        self._owner = os.getpid()

    def began(self, engines: Iterable[Mapping[str, Any]]) -> None:
        """``engines``: as `lorry up --json` says them. Each proxy has its folder for itself while it runs."""
        for engine in engines:
            for folder in (ROOT / engine["member"] / "versions").glob("*"):
                if folder not in self._before:
                    self._engine_of[folder] = engine["engine"]

    def remove(self) -> None:
        """After the programs have ended. What an engine that runs on may yet read stays until this process ends, and is then looked at again."""
        if not self._engine_of or os.getpid() != self._owner:
            return
        for folder, engine in list(self._engine_of.items()):
            if not _may_read(engine, folder):
                _remove(folder)
                del self._engine_of[folder]
        _remove_what_is_shared()
        atexit.unregister(self.remove)
        if self._engine_of:
            atexit.register(self.remove)


def _may_read(engine: str, folder: pathlib.Path) -> bool:
    try:
        with _DIRECT.open(f"{engine}/v1/models", timeout=_LIST_S) as reply:
            cards = json.load(reply)["data"]
        return any(str(card.get("root")).startswith(f"{folder}/") for card in cards)
    except urllib.error.URLError as error:
        return not isinstance(error.reason, ConnectionRefusedError)  # then nobody listens: it has ended
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return True  # it lives, and does not say


def _remove(versions: pathlib.Path) -> None:
    member = versions.parents[1]
    manifests = member / "manifests" / versions.name
    for folder in (versions, manifests):
        shutil.rmtree(folder, ignore_errors=True)
    _remove_empty(versions.parent, manifests.parent, member)


def _remove_what_is_shared() -> None:
    """The images of this host's proxies that none of them uses any more; and, where none of them runs, the folders."""
    images = ROOT / ".images" / "images"
    for image in images.glob("*"):
        try:
            if image.stat().st_nlink == 1:
                image.unlink()
        except OSError:
            pass  # another proxy took it
    # A proxy that runs has a file among the claims, and has it locked.
    if _remove_claims(ROOT / "claims"):
        _remove_empty(images, ROOT / ".images" / "claims", images.parent, ROOT)


def _remove_claims(claims: pathlib.Path) -> bool:
    """True: none is left, and the folder is not there any more. A proxy that was killed leaves its file."""
    # Proxies claim engines one after the other; what is left because one is at it goes with the next that looks.
    with contextlib.suppress(OSError), locked(claims, os.O_DIRECTORY, fcntl.LOCK_EX | fcntl.LOCK_NB):
        for claim in claims.glob("*.lock"):
            with contextlib.suppress(OSError), locked(claim, os.O_RDWR, fcntl.LOCK_EX | fcntl.LOCK_NB):
                claim.unlink()
        return _remove_empty(claims)
    return not claims.exists()


@contextlib.contextmanager
def locked(path: pathlib.Path, flags: int, how: int) -> Iterator[None]:
    """Holds the lock of what is there by that name. Raises OSError: it is not there, or another has it."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
        if os.fstat(descriptor).st_nlink == 0:
            raise FileNotFoundError(path)  # somebody removed it before, and what has its name now is not locked
        yield
    finally:
        os.close(descriptor)


def _remove_empty(*folders: pathlib.Path) -> bool:
    """True: the first of them is not there any more."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            pass  # it is in use, or gone
    return not folders[0].exists()
