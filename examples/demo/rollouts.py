"""Clients that keep both doors busy, and what they got back.

Each worker asks for `policy`, whichever version that is at the moment, alternately as one reply and as a stream. What
matters of a reply is its announcement (the X-Lorry headers) and the log-probabilities, which prove it or refute it.
"""

from __future__ import annotations

import http.client
import json
import queue
import random
import threading
import time
import urllib.parse
from dataclasses import dataclass

ADAPTER = "policy"
TOKENS = 16
# One request takes half a second on an idle machine; one that takes longer than this counts as failed.
DEADLINE_S = 120.0


@dataclass(frozen=True)
class Rollout:
    """One answered request. `logprobs`: the engine's, one a token of `tokens`."""

    door: str
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    version: int
    digest: str
    request_id: str
    streamed: bool
    seconds: float


@dataclass(frozen=True)
class Failure:
    """One request that was not answered as it should be."""

    door: str
    what: str


class Door:
    """How to ask one kind of engine, in that engine's own words."""

    def __init__(self, name: str, kind: str, url: str) -> None:
        self.name, self.kind = name, kind
        parts = urllib.parse.urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80

    def ask(self, prompt: list[int], stream: bool) -> Rollout:
        """One rollout at temperature 1. Raises OSError, ValueError, http.client.HTTPException."""
        began = time.monotonic()
        connection = http.client.HTTPConnection(self._host, self._port, timeout=DEADLINE_S)
        try:
            path, body = self._request(prompt, stream)
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            reply = connection.getresponse()
            text = reply.read()
            if reply.status != 200:
                raise ValueError(f"{reply.status} {text[:200].decode(errors='replace')}")
            tokens, logprobs = self._parse_stream(text) if stream else self._parse(json.loads(text))
            header = reply.headers
            return Rollout(self.name, prompt, tokens, logprobs, int(header["X-Lorry-Version"]),
                           header["X-Lorry-Digest"], header["X-Lorry-Request-Id"], stream, time.monotonic() - began)
        finally:
            connection.close()

    def _request(self, prompt: list[int], stream: bool) -> tuple[str, dict[str, object]]:
        if self.kind == "sglang":
            sampling = {"temperature": 1.0, "max_new_tokens": TOKENS, "ignore_eos": True}
            return "/generate", {"input_ids": prompt, "sampling_params": sampling, "lora_path": ADAPTER,
                                 "return_logprob": True, "stream": stream}
        return "/v1/completions", {"model": ADAPTER, "prompt": prompt, "max_tokens": TOKENS, "temperature": 1.0,
                                   "ignore_eos": True, "logprobs": 0, "return_token_ids": True, "stream": stream}

    def _parse(self, body: dict) -> tuple[list[int], list[float]]:
        if self.kind == "sglang":
            entries = body["meta_info"]["output_token_logprobs"]
            return [e[1] for e in entries], [e[0] for e in entries]
        choice = body["choices"][0]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    def _parse_stream(self, text: bytes) -> tuple[list[int], list[float]]:
        data = [line[6:] for line in text.split(b"\n") if line.startswith(b"data: ")]
        if not data or data[-1].strip() != b"[DONE]":
            raise ValueError("the stream broke off")
        events = [json.loads(d) for d in data[:-1]]
        if self.kind == "sglang":  # each event repeats everything so far
            return self._parse(events[-1])
        tokens: list[int] = []
        logprobs: list[float] = []
        for event in events:
            for choice in event["choices"]:
                if choice.get("token_ids"):
                    tokens += choice["token_ids"]
                    logprobs += choice["logprobs"]["token_logprobs"]
        return tokens, logprobs


class Clients:
    """`workers` threads a door, from start() to stop(). `fresh` holds what the trainer has not taken yet."""

    def __init__(self, doors: list[Door], prompts: list[list[int]], workers: int) -> None:
        self.sent = 0
        self.rollouts: list[Rollout] = []
        self.failures: list[Failure] = []
        self.fresh: queue.Queue[Rollout] = queue.Queue(maxsize=1024)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._prompts = prompts
        self._threads = [threading.Thread(target=self._work, args=(door, i), name=f"client-{door.name}-{i}", daemon=True)
                         for door in doors for i in range(workers)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Lets what is in flight end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def _work(self, door: Door, seed: int) -> None:
        chooser = random.Random(f"{door.name}-{seed}")
        turn = seed
        while not self._stop.is_set():
            turn += 1
            with self._lock:
                self.sent += 1
            try:
                rollout = door.ask(chooser.choice(self._prompts), stream=turn % 2 == 0)
            except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
                with self._lock:
                    self.failures.append(Failure(door.name, f"{type(error).__name__}: {error}"))
                self._stop.wait(0.2)
                continue
            with self._lock:
                self.rollouts.append(rollout)
            try:
                self.fresh.put_nowait(rollout)
            except queue.Full:  # the trainer is busy: it wants new ones anyway
                pass
