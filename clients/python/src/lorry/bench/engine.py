"""An engine over HTTP, as trainers call it; or a door, which generates in the same words."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import pathlib
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_PROMPT = [5, 17, 101, 33]
_LOOK_S = 10.0
_ABSENT = "start the engine, or name where it listens by --engine"
_REFUSED = "bench-sync shows no key: measure on an engine that asks for none"


class Failed(RuntimeError):
    """Something was not done; the text says what, in the engine's own words where it has some. ``remedy``: what to do;
    ``status``: of the HTTP answer, 0 where there was none."""

    def __init__(self, text: str, remedy: str = "", status: int = 0) -> None:
        super().__init__(text)
        self.remedy, self.status = remedy, status


@dataclass(frozen=True)
class Generated:
    """Greedy tokens, their log-probabilities, and the version that a door announced; empty of an engine."""

    tokens: list[int]
    logprobs: list[float]
    version: str


@dataclass(frozen=True)
class Server:
    """Any thread; a connection a call.

    Attributes:
        kind: ``sglang`` or ``vllm``.
        base: the name that its base model has.
    """

    kind: str
    version: str
    url: str
    base: str
    timeout_s: float

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return _answered("POST", self.url + path, body, self.timeout_s)[0]

    def generate(self, adapter: str | None, tokens: int) -> Generated:
        """By the adapter of that name; None: by the base model."""
        if self.kind == "sglang":
            sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
            body: dict[str, Any] = {"input_ids": _PROMPT, "sampling_params": sampling, "return_logprob": True}
            said, version = _answered("POST", f"{self.url}/generate", body | ({"lora_path": adapter} if adapter else {}), self.timeout_s)
            with _understood("POST", f"{self.url}/generate"):
                entries = said["meta_info"]["output_token_logprobs"]
                return Generated([e[1] for e in entries], [e[0] for e in entries], version)
        body = {"model": adapter or self.base, "prompt": _PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                "logprobs": 0, "return_token_ids": True}
        said, version = _answered("POST", f"{self.url}/v1/completions", body, self.timeout_s)
        with _understood("POST", f"{self.url}/v1/completions"):
            choice = said["choices"][0]
            return Generated(choice["token_ids"], choice["logprobs"]["token_logprobs"], version)

    def tokens_a_second(self, adapter: str | None, tokens: int, requests: int) -> float:
        """Of so many requests at once."""
        with concurrent.futures.ThreadPoolExecutor(requests) as pool:
            began = time.perf_counter()
            made = list(pool.map(lambda _: len(self.generate(adapter, tokens).tokens), range(requests)))
            return sum(made) / (time.perf_counter() - began)

    def adapters(self) -> set[str]:
        said = _answered("GET", f"{self.url}/v1/models", None, self.timeout_s)[0]
        with _understood("GET", f"{self.url}/v1/models"):
            return {card["id"] for card in said["data"] if card.get("parent") is not None}

    def load(self, name: str, directory: pathlib.Path) -> None:
        self.post(self._lora("load"), {"lora_name": name, "lora_path": str(directory)})

    def unload(self, name: str) -> None:
        self.post(self._lora("unload"), {"lora_name": name})

    def _lora(self, verb: str) -> str:
        return f"/{verb}_lora_adapter" if self.kind == "sglang" else f"/v1/{verb}_lora_adapter"

    def load_base(self, directory: pathlib.Path) -> None:
        """Replaces the base model's weights by a checkpoint's, and drops what was computed with the old ones.

        vLLM has no route of its own for that: its update_weights takes tensors from a process group or from the same GPU. Its workers
        read a checkpoint when they are told by the development server's ``/collective_rpc``.
        """
        if self.kind == "sglang":
            self.post("/update_weights_from_disk", {"model_path": str(directory)})
            return
        try:
            self.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(directory)}})
        except Failed as error:
            if error.status == 404:
                raise Failed("this vLLM has no HTTP route that loads a checkpoint; start it with VLLM_SERVER_DEV_MODE=1 to compare") from None
            raise
        self.post("/reset_prefix_cache", {})


def find(url: str, timeout_s: float) -> Server:
    """The engine at ``url``.

    Raises:
        Failed: none answers there, or it is neither SGLang nor vLLM.
    """
    url = url if "://" in url else f"http://{url if ':' in url else '127.0.0.1:' + url}"
    try:
        cards = _answered("GET", f"{url}/v1/models", None, _LOOK_S)[0]["data"]
        base = next(card["id"] for card in cards if card.get("parent") is None)
        info = _optional(f"{url}/server_info")
        if "model_path" in info:
            return Server("sglang", str(info.get("version", "")), url, base, timeout_s)
        version = _optional(f"{url}/version").get("version")
    except (KeyError, TypeError, StopIteration):
        version = None
    if version is None:
        raise Failed(f"{url} is neither SGLang nor vLLM", "name the engine itself by --engine, and no door or router in front of it")
    return Server("vllm", str(version), url, base, timeout_s)


def _words(raw: str) -> str:
    """Of an engine's error: its own sentence, on one line, whatever JSON is around it."""
    try:
        said = json.loads(raw)
    except ValueError:
        said = raw
    while isinstance(said, dict):
        said = next((said[key] for key in ("error", "message", "detail") if said.get(key)), str(said))
    return " ".join(str(said).split())[:400]


@contextlib.contextmanager
def _understood(method: str, url: str) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, AttributeError) as error:
        raise Failed(f"the answer to {method} {url} is not as this engine's kind makes it: {type(error).__name__} {error}",
                     "name the engine itself by --engine, and tell which release of it this is where that does not help") from None


def _optional(url: str) -> dict[str, Any]:
    try:
        said = _answered("GET", url, None, _LOOK_S)[0]
    except Failed:
        return {}
    return said if isinstance(said, dict) else {}


def _answered(method: str, url: str, body: dict[str, Any] | None, timeout_s: float) -> tuple[Any, str]:
    """The decoded body (text where it is no JSON) and the version that a door announced."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            raw, version = reply.read().decode(errors="replace"), reply.headers.get("X-Lorry-Version", "")
    except urllib.error.HTTPError as error:
        remedy = _REFUSED if error.code in (401, 403) else "the engine's log says more"
        raise Failed(f"{method} {url} was answered by {error.code}: {_words(error.read().decode(errors='replace'))}", remedy, error.code) from None
    except TimeoutError:
        raise Failed(f"{method} {url} was not answered within {timeout_s:g} s", "give it more time by --timeout, or look at its log") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise Failed(f"nothing answers at {url} within {timeout_s:g} s", _ABSENT) from None
        raise Failed(f"nothing answers {method} {url}: {getattr(reason, 'strerror', None) or reason}", _ABSENT) from None
    try:
        return json.loads(raw), version
    except ValueError:
        return raw, version
