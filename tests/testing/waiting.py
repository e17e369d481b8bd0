"""Waiting for a state: the only way in which tests may let time pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

# On an idle machine everything that is awaited here comes within seconds; two cores that compile beside it are slow.
DEADLINE_S = 60.0
_POLL_S = 0.02
_nothing_sets_it = threading.Event()


class NeverCame(AssertionError):
    """A state that was awaited did not come; the text holds what was seen last."""


def until(condition: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """The first true answer of `condition`; OSError counts as not yet. Raises NeverCame."""
    end = time.monotonic() + deadline_s
    seen: object = None
    while time.monotonic() < end:
        try:
            answer = condition()
            if answer:
                return answer
            seen = answer
        except OSError as error:
            seen = error
        _nothing_sets_it.wait(_POLL_S)
    raise NeverCame(f"{what}: not within {deadline_s:.0f} s; last: {seen!r}")


def moment(seconds: float) -> None:
    """Lets a drawn moment pass, for faults that shall strike at any time; nothing may rely on it having passed."""
    _nothing_sets_it.wait(seconds)


class Background:
    """A call made on a thread; `returned_within` says whether it has come back."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, args=(call, args), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.result = call(*args)

    def returned_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()
