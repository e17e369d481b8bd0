"""The few calls that tests make on an engine, the same for both kinds: what differs between SGLang and vLLM on the wire
is here, what differs in behaviour is in the tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
from dataclasses import dataclass, field
from typing import Any

from testing.engines import CALL_DEADLINE_S, Engine

PROMPT = "the quick brown"
PAUSE_MODES = {"sglang": ("abort", "retract", "in_place"), "vllm": ("abort", "wait", "keep")}


@dataclass
class Reply:
    status: int
    text: str = ""  # what was generated
    logprobs: list[float] = field(default_factory=list)
    body: Any = None  # decoded JSON, or text

    @property
    def message(self) -> str:
        """The error's text, wherever this engine puts it."""
        body = self.body
        if isinstance(body, dict):
            error = body.get("error")
            inner = error.get("message") if isinstance(error, dict) else error
            return str(
                inner or body.get("error_message") or body.get("message") or body.get("detail")
            )
        return str(body)


class Stream:
    """A streaming generation read by a thread. `events` are the decoded data lines so far."""

    def __init__(self, engine: Engine, path: str, body: dict):
        self.events: list[dict] = []
        self._changed = threading.Condition()
        self.ended = False
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", engine.port, timeout=CALL_DEADLINE_S
        )
        self._connection.request(
            "POST", path, json.dumps(body), {"content-type": "application/json"}
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
            response = self._connection.getresponse()
            while line := response.readline():
                if line.startswith(b"data: {"):
                    with self._changed:
                        self.events.append(json.loads(line[6:]))
                        self._changed.notify_all()
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def wait_for(self, count: int, timeout_s: float = CALL_DEADLINE_S) -> None:
        """Until `count` events have arrived."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: len(self.events) >= count or self.ended, timeout_s
            )
        assert done and len(self.events) >= count, f"{len(self.events)} of {count} events"

    def wait_end(self, timeout_s: float = CALL_DEADLINE_S) -> list[dict]:
        with self._changed:
            assert self._changed.wait_for(lambda: self.ended, timeout_s), "the stream goes on"
        return self.events

    def leave(self) -> None:
        """The client goes away in the middle."""
        if self._connection.sock:
            self._connection.sock.close()


class EngineApi:
    def __init__(self, engine: Engine):
        self.engine, self.kind = engine, engine.kind
        self.v1 = "" if engine.kind == "sglang" else "/v1"

    def _post(self, path: str, body: object = None, timeout_s: float = CALL_DEADLINE_S) -> Reply:
        status, reply = self.engine.call("POST", path, body, timeout_s)
        return Reply(status, body=reply)

    def load(self, name: str, path, timeout_s: float = CALL_DEADLINE_S) -> Reply:
        body = {"lora_name": name, "lora_path": str(path)}
        return self._post(f"{self.v1}/load_lora_adapter", body, timeout_s)

    def unload(self, name: str, timeout_s: float = CALL_DEADLINE_S) -> Reply:
        return self._post(f"{self.v1}/unload_lora_adapter", {"lora_name": name}, timeout_s)

    def listed(self) -> dict[str, str]:
        """Adapter name -> path, without the base model."""
        _, body = self.engine.call("GET", "/v1/models")
        return {m["id"]: m["root"] for m in body["data"] if m["parent"]}

    def _generation(
        self, name: str | None, tokens: int, prompt: str, stream: bool
    ) -> tuple[str, dict]:
        if self.kind == "sglang":
            params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
            body = {"text": prompt, "sampling_params": params, "return_logprob": not stream}
            return "/generate", body | ({"lora_path": name} if name else {}) | {"stream": stream}
        body = {"model": name or "base", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        return "/v1/completions", body | {"logprobs": 1, "ignore_eos": True, "stream": stream}

    def generate(
        self,
        name: str | None,
        tokens: int = 5,
        prompt: str = PROMPT,
        timeout_s: float = CALL_DEADLINE_S,
    ) -> Reply:
        reply = self._post(*self._generation(name, tokens, prompt, stream=False), timeout_s)
        if reply.status == 200 and self.kind == "sglang":
            reply.text = reply.body["text"]
            reply.logprobs = [p for p, *_ in reply.body["meta_info"]["output_token_logprobs"]]
        elif reply.status == 200:
            choice = reply.body["choices"][0]
            reply.text, reply.logprobs = choice["text"], choice["logprobs"]["token_logprobs"]
        return reply

    def stream(self, name: str | None, tokens: int = 300, prompt: str = PROMPT) -> Stream:
        return Stream(self.engine, *self._generation(name, tokens, prompt, stream=True))

    def finish_reason(self, events: list[dict]) -> str | None:
        if self.kind == "sglang":
            reason = events[-1]["meta_info"]["finish_reason"]
            return reason and reason["type"]
        return events[-1]["choices"][0]["finish_reason"]

    def pause(self, mode: str) -> Reply:
        if self.kind == "sglang":
            return self._post("/pause_generation", {"mode": mode})
        return self._post(f"/pause?mode={mode}")

    def resume(self) -> Reply:
        return (
            self._post("/continue_generation", {})
            if self.kind == "sglang"
            else self._post("/resume")
        )

    def load_counts(self) -> tuple[int, int]:
        """(running, waiting) requests."""
        if self.kind == "sglang":
            rows = self.engine.call("GET", "/v1/loads")[1]["loads"]
            return sum(r["num_running_reqs"] for r in rows), sum(
                r["num_waiting_reqs"] for r in rows
            )
        text = self.engine.call("GET", "/metrics")[1]

        def total(name: str) -> int:
            return sum(
                int(float(v))
                for v in re.findall(rf"^vllm:num_requests_{name}{{.*}} (.*)$", text, re.M)
            )

        return total("running"), total("waiting")

    def worked(self) -> float:
        """Another number whenever it has computed meanwhile."""
        if self.kind == "sglang":
            return sum(r["timestamp"] for r in self.engine.call("GET", "/v1/loads")[1]["loads"])
        text = self.engine.call("GET", "/metrics")[1]
        made = re.findall(r"^vllm:generation_tokens_total{.*} (.*)$", text, re.M)
        return sum(map(float, made))

    def boot_marker(self) -> str:
        if self.kind == "sglang":
            return json.dumps(
                self.engine.call("GET", "/server_info")[1]["startup_time"], sort_keys=True
            )
        text = self.engine.call("GET", "/metrics")[1]
        return re.findall(r"^process_start_time_seconds (.*)$", text, re.M)[0]
