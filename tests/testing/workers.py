"""Threads that work from enter to exit: what traffic, trainers and watchers are made of. And work that is done side by side."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterable
from typing import Self, TypeVar

T = TypeVar("T")


def at_once(work: Callable[[T], object], each: Iterable[T]) -> None:
    """`work` on all of `each`, side by side. Ends when all have ended, and raises what the first of those that failed raised."""
    items = list(each)
    with concurrent.futures.ThreadPoolExecutor(len(items)) as pool:
        for _ in pool.map(work, items):
            pass


class Workers:
    """One thread for each of `work`, which goes on until `_stop` is set; they may take `join_s` to notice.

    What one of them raised is raised by the exit: a thread that ended early must not pass for one that saw nothing wrong.
    Nor must one that hangs, so the exit raises then, too; unless `told_of`, where the owner asks `at_work` and tells of it.
    """

    def __init__(self, *work: Callable[[], None], join_s: float, told_of: bool = False) -> None:
        self._stop = threading.Event()
        self._join_s, self._told_of = join_s, told_of
        self._failed: list[BaseException] = []
        self._threads = [threading.Thread(target=self._noting, args=(each,), daemon=True) for each in work]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def _noting(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._failed.append(error)
            raise  # so that it is printed, too

    def __exit__(self, failed: type[BaseException] | None = None, *_: object) -> None:
        self._stop.set()
        end = time.monotonic() + self._join_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if failed is not None:
            return
        if self._failed:
            raise self._failed[0]
        if self.at_work() and not self._told_of:
            raise AssertionError(f"{self.at_work()} of {len(self._threads)} threads hang: not at an end within {self._join_s:.0f} s")

    def at_work(self) -> int:
        """Threads that have not ended: after the exit, those that hang."""
        return sum(thread.is_alive() for thread in self._threads)
