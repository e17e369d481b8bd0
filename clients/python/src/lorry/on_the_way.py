"""Publishes that have not ended: how many there may be, in which order they commit, and who waits for them at the end."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref

from lorry import errors
from lorry.connection import PUBLISH_BUDGET_S, SAID_AFTER_S
from lorry.handle import PublishHandle

# Each has its image in memory, a thread and perhaps a child process; a trainer that is ahead of the store by more waits.
ON_THE_WAY_MAX = 4
# Versions that were lost without anybody being told, of which the end of the run tells; earlier ones are in the log alone.
LOST_MAX = 16
# How soon a wait notices what does not wake it.
LOOK_EVERY_S = 0.2
# A script that has ended waits for what moves; what stands still for so long is given up, as nobody is there to decide.
END_PATIENCE_S = 60.0
_log = logging.getLogger("lorry")


class OnTheWay:
    """Those of one run. One thread of each process adds and finishes."""

    def __init__(self) -> None:
        self._handles: list[PublishHandle] = []  # those that have not ended, or were lost without a word, and the last
        self._pid = os.getpid()

    def make_room(self) -> None:
        """Waits until one more may be on its way.

        Raises:
            LorryError: TOO_MANY_UPLOADS: those that are have not moved for ten minutes.
        """
        stillness, began, is_said = _Stillness(), time.monotonic(), False
        while len(left := self._left()) >= ON_THE_WAY_MAX:
            if stillness.seconds(left) > PUBLISH_BUDGET_S:
                raise errors.LorryError(f"{len(left)} versions are on their way and none of them moves; {left[0]}: {left[0].status}",
                                        "TOO_MANY_UPLOADS", "RESOURCE_EXHAUSTED")
            if not is_said and time.monotonic() - began > SAID_AFTER_S:
                _log.warning("publish waits, as %d versions are on their way; %s: %s", len(left), left[0], left[0].status)
                is_said = True
            left[0]._done.wait(min(LOOK_EVERY_S, SAID_AFTER_S))

    def add(self, handle: PublishHandle) -> list[PublishHandle]:
        """Returns those with lower numbers, for ``wait_for_turn``."""
        older = [other for other in self._left() if other.number < handle.number]
        mine = self._handles if self._pid == os.getpid() else []
        # One that is published again is not lost yet.
        kept = [other for other in mine if not other.done() or (other._is_lost() and other.number != handle.number)]
        for forgotten in kept[:-LOST_MAX - ON_THE_WAY_MAX]:
            _log.error("%s was not stored: %s", forgotten, forgotten.status)
        self._handles = [*kept[-LOST_MAX - ON_THE_WAY_MAX:], handle]
        _wait_at_the_end(self)
        return older

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
        if self._pid != os.getpid():
            return []  # a fork: their threads are the parent's, and so is the wait for them
        return [handle for handle in self._handles if not handle.done()]

    def _finish_without_anybody(self, patience_s: float) -> None:
        if self._pid != os.getpid():
            return
        stillness = _Stillness()
        while left := self._left():
            if stillness.seconds(left) >= patience_s:
                break
            left[0]._done.wait(LOOK_EVERY_S)
        for handle in self._handles:
            if not handle.done() or handle._is_lost():
                _log.error("%s was not stored when the process ended: %s", handle, handle.status)


def wait_for_turn(handle: PublishHandle, older: list[PublishHandle]) -> None:
    """Returns once these have ended: the store takes no version that is older than its newest."""
    for other in older:
        while not other._done.wait(LOOK_EVERY_S):
            handle._check_cancelled()
            handle._say(f"it comes after {other}: {other.status}")


class _Stillness:
    """For how long nothing has moved."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, int]] = []
        self._since = time.monotonic()

    def seconds(self, handles: list[PublishHandle]) -> float:
        now = [(handle.number, handle.bytes_done) for handle in handles]
        if now != self._seen or any(handle.status.reason == "CHECK_RUNNING" for handle in handles):
            self._seen, self._since = now, time.monotonic()
        return time.monotonic() - self._since


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
