"""Threads that work from enter to exit: what traffic, trainers and watchers are made of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self


class Workers:
    """One thread for each of `work`, which goes on until `_stop` is set; each may take `join_s` to notice."""

    def __init__(self, *work: Callable[[], None], join_s: float) -> None:
        self._stop = threading.Event()
        self._join_s = join_s
        self._threads = [threading.Thread(target=each, daemon=True) for each in work]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(self._join_s)

    def at_work(self) -> int:
        """Threads that have not ended: after the exit, those that hang."""
        return sum(thread.is_alive() for thread in self._threads)
