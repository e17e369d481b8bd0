"""A rollout client at a member's door, in that engine's own words.

    answer = DoorClient("vllm", fleet.door("vllm")).ask("policy@2")
    answer.status, answer.reason, answer.tokens, answer.version, answer.digest
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

PROMPT = [5, 17, 101, 33]
# One request takes 10 ms on a fake and a second on a real engine; a machine that compiles beside it is slow.
DEADLINE_S = 180.0  # a real engine on a machine that others slow down makes 900 tokens in more than a minute


@dataclass
class Answer:
    """What came back. `tokens`, `logprobs`: generated; empty for errors."""

    status: int
    headers: dict[str, str]
    body: Any
    prompt: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    samples: list[list[int]] = field(default_factory=list)  # tokens of each, where several were asked for
    # By the monotonic clock: before the request left, and when the reply's head was here.
    asked_at: float = 0.0
    began_at: float = 0.0

    @property
    def reason(self) -> str:
        return self.headers.get("x-lorry-reason", "")

    @property
    def message(self) -> str:
        error = self.body.get("error", self.body) if isinstance(self.body, dict) else self.body
        return str(error.get("message") if isinstance(error, dict) else error)

    @property
    def version(self) -> int:
        return int(self.headers["x-lorry-version"])

    @property
    def run(self) -> int:
        return int(self.headers["x-lorry-run"])

    @property
    def digest(self) -> str:
        return self.headers["x-lorry-digest"]


class DoorClient:
    """Asks one door. Any thread; a connection a request."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        parts = urllib.parse.urlsplit(url)
        self._at = parts.hostname or "127.0.0.1", parts.port or 80

    def ask(
        self, name: str | None, *, tokens: int = 4, prompt: list[int] | None = None, stream: bool = False
    ) -> Answer:
        """One greedy generation by adapter `name`. Raises OSError or http.client.HTTPException when it breaks off."""
        prompt = prompt or PROMPT
        asked_at = time.monotonic()
        status, headers, raw, began_at = self._post(*self._request(name, tokens, prompt, stream))
        if status != 200:
            answer = Answer(status, headers, _decoded(raw), prompt)
        elif stream:
            answer = self._streamed(headers, raw, prompt)
        else:
            answer = Answer(200, headers, json.loads(raw), prompt)
            answer.tokens, answer.logprobs = self._generated(answer.body)
        answer.asked_at, answer.began_at = asked_at, began_at
        return answer

    def ask_samples(self, name: str, samples: int, *, tokens: int = 4, prompt: list[int] | None = None) -> Answer:
        """As `ask`, with n > 1: `samples` of the answer holds the tokens of each."""
        prompt = prompt or PROMPT
        path, body = self._request(name, tokens, prompt, stream=False)
        (body["sampling_params"] if self.kind == "sglang" else body)["n"] = samples
        status, headers, raw, _ = self._post(path, body)
        if status != 200:
            return Answer(status, headers, _decoded(raw), prompt)
        answer = Answer(200, headers, json.loads(raw), prompt)
        if self.kind == "sglang":
            answer.samples = [self._generated(one)[0] for one in answer.body]
        else:
            answer.samples = [choice["token_ids"] for choice in answer.body["choices"]]
        return answer

    def _post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, str], bytes, float]:
        """Status, headers by their lower-case names, body, and when the head was here."""
        connection = http.client.HTTPConnection(*self._at, timeout=DEADLINE_S)
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            reply = connection.getresponse()
            began_at = time.monotonic()
            return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read(), began_at
        finally:
            connection.close()

    def _request(self, name: str | None, tokens: int, prompt: list[int], stream: bool) -> tuple[str, dict[str, Any]]:
        if self.kind == "sglang":
            sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
            body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True, "stream": stream}
            return "/generate", body | ({"lora_path": name} if name else {})
        return "/v1/completions", {"model": name or "base", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                                   "ignore_eos": True, "logprobs": 0, "return_token_ids": True, "stream": stream}

    def _generated(self, body: dict[str, Any]) -> tuple[list[int], list[float]]:
        if self.kind == "sglang":
            entries = body["meta_info"]["output_token_logprobs"]
            return [e[1] for e in entries], [e[0] for e in entries]
        choice = body["choices"][0]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    def _streamed(self, headers: dict[str, str], raw: bytes, prompt: list[int]) -> Answer:
        data = [line[6:].strip() for line in raw.split(b"\n") if line.startswith(b"data: ")]
        if not data or data[-1] != b"[DONE]":
            raise http.client.HTTPException("the stream broke off")
        events = [json.loads(d) for d in data[:-1]]
        answer = Answer(200, headers, events, prompt)
        if any("error" in event for event in events):
            raise http.client.HTTPException(f"the stream ended with an error: {events[-1]}")
        if self.kind == "sglang":  # each event repeats everything so far
            answer.tokens, answer.logprobs = self._generated(events[-1])
            return answer
        for choice in (c for event in events for c in event["choices"] if c.get("token_ids")):
            answer.tokens += choice["token_ids"]
            answer.logprobs += choice["logprobs"]["token_logprobs"]
        return answer


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")
