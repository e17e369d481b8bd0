"""AstraFlow's client side, as it drives inference servers that it knows nothing else of.

After astraflow/raas/engine/remote_inf_engine.py, sglang_remote.py and raas/server/manager.py: of Infini-AI-Lab/astraflow at f3e379e
(PR #20: a new name for each version, none unloaded) and, with `fixed_name`, at 343e808 (`lora_1`, unloaded and loaded at each sync).

    service = Service([url, ...], eval_urls, folder)
    service.notify_version(3, adapter_dir)         # a no-op where it has that version, or a newer one
    service.train.generate(prompt, tokens)         # Trajectory: each token with the version that the client stamps on it
"""

from __future__ import annotations

import http.client
import itertools
import pathlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from testing.doors import Answer, DoorClient
from testing.engines import http_json
from testing.frameworks import CALL_S, write
from testing.waiting import until
from testing.workers import at_once


@dataclass
class Segment:
    """What one request of a trajectory came to."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    name: str  # the adapter that it named
    stamp: int  # the version that the client wrote beside each of its tokens
    aborted: bool
    asked_at: float  # by the monotonic clock
    ended_at: float


@dataclass
class Trajectory:
    segments: list[Segment] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [token for segment in self.segments for token in segment.tokens]


class Engine:
    """RemoteInfEngine: some servers, one version."""

    def __init__(self, urls: Sequence[str], fixed_name: bool = False) -> None:
        self.doors = [DoorClient("sglang", url) for url in urls]
        self.urls = list(urls)
        self.lora_initialized = False
        self.slowest_s = 0.0  # of its calls
        self.retries = False  # as AstraFlow's does; without, whatever is not answered is seen
        self.current_lora_name: str | None = None
        self._fixed_name = fixed_name
        self._seq = 0
        self._version = 0
        self._turn = itertools.count()
        self._may_ask = threading.Event()
        self._may_ask.set()

    def post(self, path: str, body: dict[str, Any]) -> None:
        """To all servers; the first that fails fails it."""

        def each(url: str) -> None:
            status, reply = http_json("POST", url + path, body, CALL_S)
            assert status == 200, (url, path, status, reply)

        began = time.monotonic()
        at_once(each, self.urls)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def pause_generation(self) -> None:
        self.post("/pause_generation", {})

    def continue_generation(self) -> None:
        self.post("/continue_generation", {})

    def set_generation_paused(self, paused: bool) -> None:
        """What the clients' loop looks at before each request; of a service that is told to hold them back."""
        self._may_ask.clear() if paused else self._may_ask.set()

    def load_weights_from_path(self, path: pathlib.Path) -> None:
        self._seq += 1
        name = "lora_1" if self._fixed_name else f"lora_v{self._seq}"
        if self._fixed_name and self.lora_initialized:
            self.post("/unload_lora_adapter", {"lora_name": name})
        self.post("/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})
        self.lora_initialized, self.current_lora_name = True, name
        self.post("/flush_cache", {})

    def set_version(self, version: int) -> None:
        self._version = version

    def _ask(self, door: DoorClient, name: str | None, prompt: list[int], tokens: int) -> Answer:
        """arequest_with_retry: asks again where the server breaks off, or answers that it cannot now."""

        def once() -> Answer | None:
            try:
                answer = door.ask(name, prompt=prompt, tokens=tokens)
            except http.client.HTTPException:
                return None
            return None if answer.status >= 500 else answer

        return until(once, f"{name} is answered", CALL_S) if self.retries else door.ask(name, prompt=prompt, tokens=tokens)

    def generate(self, prompt: list[int], tokens: int) -> Trajectory:
        """agenerate: a request that is aborted is asked for again, behind the tokens that it has."""
        made, prompt = Trajectory(), list(prompt)
        door = self.doors[next(self._turn) % len(self.doors)]
        while tokens > 0:
            assert self._may_ask.wait(CALL_S), "the service holds its clients back and goes on no more"
            name = self.current_lora_name
            answer = self._ask(door, name, prompt, tokens)
            assert answer.status == 200, f"{name}: {answer.status} {answer.body}"
            reason = answer.body["meta_info"]["finish_reason"]["type"]
            stamp = self._version
            made.segments.append(
                Segment(prompt, answer.tokens, answer.logprobs, name or "", stamp, reason == "abort", answer.asked_at, time.monotonic())
            )
            prompt, tokens = prompt + answer.tokens, tokens - len(answer.tokens)
        return made


class Service:
    """RaaS: the engine that trains, its mirrors that evaluate, and whose version is the newest."""

    def __init__(self, train: Sequence[str], evaluate: Sequence[Sequence[str]], folder: pathlib.Path, fixed_name: bool = False) -> None:
        """`evaluate`: servers of each eval engine; may be those that train."""
        self.train = Engine(train, fixed_name)
        self.eval = [Engine(urls, fixed_name) for urls in evaluate]
        self._fixed_name = fixed_name
        self._folder = folder
        self._version = 0
        self._lock = threading.Lock()
        # By the monotonic clock, of each version: when no request of the one before it could begin any more, and when clients had it.
        self.paused_at: dict[int, float] = {}
        self.stamped_at: dict[int, float] = {}
        self.version_of: dict[str, int] = {}  # by the name that it was loaded under last

    @property
    def slowest_s(self) -> float:
        return max(engine.slowest_s for engine in (self.train, *self.eval))

    def notify_version(self, version: int, source: pathlib.Path) -> bool:
        """Whether it was pulled and loaded."""
        if version <= self._version:
            return False
        with self._lock:
            if version <= self._version:  # an earlier one that waited for the lock has it
                return False
            self._update(version, source)
            return True

    def give_up(self) -> None:
        """After an update that failed: its clients may ask again, by the names that they had. The servers are not told to go on."""
        for engine in (self.train, *self.eval):
            engine.set_generation_paused(False)

    def _update(self, version: int, source: pathlib.Path) -> None:
        """_do_weight_update. The name flips before the engine goes on, the version that is stamped afterwards."""
        write(source, self._folder)  # pulled into one directory, before the pause
        apart = [engine for engine in self.eval if engine.urls != self.train.urls]
        if not self._fixed_name:  # what clients name is old until it has flipped, so none asks meanwhile
            for engine in (self.train, *self.eval):
                engine.set_generation_paused(True)
        for engine in (self.train, *apart):
            engine.pause_generation()
        self.paused_at[version] = time.monotonic()
        self.train.load_weights_from_path(self._folder)
        for engine in apart:
            engine.load_weights_from_path(self._folder)
        self.version_of[self.train.current_lora_name or ""] = version
        for engine in (self.train, *apart):
            engine.continue_generation()
        self._version = version
        for engine in (self.train, *self.eval):
            engine.set_version(version)
            engine.lora_initialized, engine.current_lora_name = True, self.train.current_lora_name
        self.stamped_at[version] = time.monotonic()
        for engine in (self.train, *self.eval):
            engine.set_generation_paused(False)
