"""Publishes that have not ended: who waits for them when a run, or the process, ends."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref

from lorry import errors
from lorry.connection import SAID_AFTER_S
from lorry.handle import PublishHandle

# A script that has ended waits for what moves; what stands still for so long is given up, as nobody is there to decide.
END_PATIENCE_S = 60.0
_log = logging.getLogger("lorry")


class OnTheWay:
    """Those of one run. One thread of each process adds and finishes."""

    def __init__(self) -> None:
        self._handles: list[PublishHandle] = []  # those that have not ended, and the last
        self._pid = os.getpid()

    def add(self, handle: PublishHandle) -> None:
        self._handles = [*self._left(), handle]
        _wait_at_the_end(self)

    def finish(self) -> None:
        """Waits until all have ended. Ctrl-C cancels them and is passed on.

        Raises:
            LorryError: of what was not stored, where nobody was told: as its handle's ``wait`` would have.
        """
        try:
            for handle in self._left():
                if not handle._done.wait(SAID_AFTER_S):
                    _log.warning("the end of the run waits for %s: %s", handle, handle.status)
                    handle._done.wait()
        except KeyboardInterrupt:
            self.cancel()
            raise
        lost = [handle for handle in self._handles if handle._is_lost()]
        self._handles = []
        if lost:
            error = lost[-1]._error
            raise errors.of(f"{', '.join(map(str, lost))} not stored when the run ended: {error}", getattr(error, "reason", ""),
                            getattr(error, "code", "UNKNOWN")) from error

    def cancel(self) -> None:
        """Ends all of them."""
        left, self._handles = self._left(), []
        for handle in left:
            handle._end(errors.Cancelled(f"{handle} was cancelled by the end of its run", "", "CANCELLED"))
        for handle in left:
            if not handle._abort():
                return  # the store is away: their idle deadline ends the others, too

    def _left(self) -> list[PublishHandle]:
        return [handle for handle in self._handles if not handle.done()]

    def _finish_without_anybody(self, patience_s: float) -> None:
        seen, since = None, time.monotonic()
        while self._pid == os.getpid() and (left := self._left()):
            now = [(handle.number, handle.bytes_done) for handle in left]
            if now != seen or any(handle.status.reason == "CHECK_RUNNING" for handle in left):
                seen, since = now, time.monotonic()
            if time.monotonic() - since >= patience_s:
                break
            left[0]._done.wait(0.2)
        for handle in self._handles:
            if not handle.done() or handle._is_lost():
                _log.error("%s was not stored when the process ended: %s", handle, handle.status)


_runs: weakref.WeakSet[OnTheWay] = weakref.WeakSet()
_waiter: threading.Thread | None = None


def _wait_at_the_end(run: OnTheWay) -> None:
    """A script that publishes and ends would take its uploads along: their threads are daemons, as one that waits for a store
    that is away must not keep a trainer that failed. The interpreter waits for this thread, which is none.
    """
    global _waiter
    _runs.add(run)
    if _waiter is None or not _waiter.is_alive():  # not alive: this is a fork
        _waiter = threading.Thread(target=_finish_all, name="lorry-end", daemon=False)
        _waiter.start()


def _finish_all() -> None:
    threading.main_thread().join()
    failed = getattr(sys, "last_value", None) is not None  # the traceback that ended the script
    for run in list(_runs):
        run._finish_without_anybody(0.0 if failed else END_PATIENCE_S)
