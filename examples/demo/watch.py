"""What the orchestrator sees, asked again and again beside the main loop, so that the screen moves while a sync runs."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import lorry
from demo.screen import Scene

# Two redraws of the screen. A question costs the orchestrator less than a millisecond.
POLL_S = 0.5
# An answer takes milliseconds; where the orchestrator is away, the client keeps trying for longer than the end shall wait.
JOIN_S = 5.0


class Watcher:
    """A thread that keeps `scene.status` fresh from enter to exit. An error is shown, not raised: the next answer may come."""

    def __init__(self, scene: Scene, admin: lorry.Admin) -> None:
        self._scene, self._admin = scene, admin
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="watcher", daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(JOIN_S)

    def _work(self) -> None:
        while not self._stop.wait(POLL_S):
            try:
                status = self._admin.status()
            except (lorry.errors.LorryError, OSError, ValueError) as error:  # ValueError: the channel was closed
                self._scene.trouble = f"{type(error).__name__}: {error}"
            else:
                self._scene.saw(status, time.monotonic())
