"""Threads that work from enter to exit: what traffic, trainers and watchers are made of. And work that is done side by side."""

from __future__ import annotations

import concurrent.futures
import threading
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
    """One thread for each of `work`, which goes on until `_stop` is set; each may take `join_s` to notice.

    What one of them raised is raised by the exit: a thread that ended early must not pass for one that saw nothing wrong.
    """

    def __init__(self, *work: Callable[[], None], join_s: float) -> None:
        self._stop = threading.Event()
        self._join_s = join_s
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
        for thread in self._threads:
            thread.join(self._join_s)
        if self._failed and failed is None:
            raise self._failed[0]

    def at_work(self) -> int:
        """Threads that have not ended: after the exit, those that hang."""
        return sum(thread.is_alive() for thread in self._threads)
