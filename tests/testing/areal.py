"""AReaL's client side: what it sends to the servers that it rolls out on, from areal/engine/sglang_remote.py, vllm_remote.py and
infra/remote_inf_engine.py of inclusionAI/AReaL at 4aef98d, with the window of versions of its PR #1385 (a0f3dca).

    client = Areal([url, ...], "sglang", "lora-gsm8k", keep=4)
    client.update(10, path)                     # paused, v10 loaded on all servers, v6 unloaded if it is there, continued
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from testing.engines import http_json
from testing.frameworks import CALL_S
from testing.workers import at_once


@dataclass
class HttpRequest:
    endpoint: str
    payload: dict[str, Any]
    best_effort: bool = False


def versioned(name: str, version: int) -> str:
    return f"{name}-v{version}"


class Areal:
    """Some servers of one kind. `keep`: max_head_offpolicyness + 2; 0: none is ever unloaded."""

    def __init__(self, urls: Sequence[str], kind: str, lora_name: str, keep: int = 0) -> None:
        self.urls, self.kind, self.lora_name, self.keep = list(urls), kind, lora_name, keep
        self.ignored: list[str] = []  # what best-effort requests came to that did not succeed
        self.sent: list[HttpRequest] = []

    def name(self, version: int) -> str:
        return versioned(self.lora_name, version)

    def disk_requests(self, version: int, path: pathlib.Path, use_lora: bool = True) -> list[HttpRequest]:
        """build_disk_weight_update_requests."""
        prefix = "" if self.kind == "sglang" else "/v1"
        if not use_lora:
            if self.kind == "sglang":
                return [HttpRequest("/update_weights_from_disk", {"model_path": str(path), "abort_all_requests": True})]
            return [HttpRequest("/areal_update_weights", {"model_path": str(path)})]
        requests = [HttpRequest(prefix + "/load_lora_adapter", {"lora_name": self.name(version), "lora_path": str(path)})]
        if self.keep > 0 and version - self.keep >= 0:
            stale = {"lora_name": self.name(version - self.keep)}
            requests.append(HttpRequest(prefix + "/unload_lora_adapter", stale, best_effort=True))
        return requests

    def pause(self) -> None:
        self.run([HttpRequest("/pause_generation" if self.kind == "sglang" else "/areal_pause_generation", {})])

    def go_on(self) -> None:
        self.run([HttpRequest("/continue_generation" if self.kind == "sglang" else "/areal_continue_generation", {})])

    def update(self, version: int, path: pathlib.Path, use_lora: bool = True) -> None:
        """AReaL leaves its servers paused where this raises."""
        self.pause()
        self.run(self.disk_requests(version, path, use_lora))
        self.go_on()

    def run(self, requests: Sequence[HttpRequest]) -> None:
        """One request after the other, each to all servers; the first failure of one that is no best effort fails it."""
        for request in requests:
            self.sent.append(request)

            def each(url: str, request: HttpRequest = request) -> None:
                status, reply = http_json("POST", url + request.endpoint, request.payload, CALL_S)
                if status == 200:
                    return
                assert request.best_effort, (url, request, status, reply)
                self.ignored.append(f"{request.endpoint} {request.payload['lora_name']}: {status}")

            at_once(each, self.urls)
