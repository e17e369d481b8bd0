"""What both fake engines share: reading an adapter directory, made-up but reproducible tokens, a scheduler that can be
paused, and the control routes by which a test flips switches.

Tokens are a pure function of (bytes of adapter_model.safetensors, prompt, position), so a test can compute which
version must have answered: see `expected_tokens`.
"""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable

import safetensors
import uvicorn
from fastapi import FastAPI, HTTPException

VOCABULARY = 512
# The sizes of tools/engines/tiny_model.py, for tests that name no model.
DEFAULT_MODEL = pathlib.Path(__file__).resolve().parent / "model"
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
BASE_DIGEST = "base"
DIE_AT_LOAD, DIE_AT_USE, HANG_AT_LOAD, NO_EFFECT = "die at load", "die at use", "hang at load", "no effect"
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclasses.dataclass
class Switches:
    """Behaviour that a test may change while the fake runs. The defaults are what the real engines do."""

    token_delay_s: float = 0.002
    load_delay_s: float = 0.0  # a load takes this long, and succeeds even if its caller has left
    unload_delay_s: float = 0.0
    load_error: str = ""  # the next loads are refused with this text
    load_error_of_a_rank: str = ""  # sglang: the next loads fail on one rank alone, with this text
    hold_loads: bool = False  # loads hang until this is false again
    hold_releases: bool = False  # sglang: memory is released once this is false again
    refuse_resumes: int = 0  # so many of the next resumes are answered 503, and the engine stays paused
    serve_base: bool = False  # adapters are listed and accepted, and the base model answers
    other_base: str = ""  # vllm: these are the base model's weights
    logprob_noise: float = 0.0  # log-probabilities of one prompt differ by up to so much each time
    leak_on_queue_abort: bool = (
        False  # sglang before 0.5.2x: a request aborted while queued keeps its reference
    )
    release_twice: bool = False  # sglang before 0.5.2x: one that is aborted while it runs may be let go of twice
    leak_on_n: bool = False  # sglang before 0.5.2x: n > 1 releases once too often
    implicit_reload: bool = (
        True  # sglang: an unloaded name is loaded again by the next request that names it
    )
    base_for_unknown: bool = True  # sglang: OpenAI routes answer unknown names with the base model
    die_of_prompt_logprobs: bool = False  # vllm on a CPU: with a second request in the step
    # What adapters are once weights were released: "kept"; "gone", and not listed; or "base": listed as before, and the
    # base model answers until they are loaded anew.
    after_sleep: str = "kept"
    vanish: str = ""  # this name drops out of the listing, as after drift
    # A file of what is wrong with some weights: {their SHA-256: DIE_AT_LOAD, DIE_AT_USE, HANG_AT_LOAD, NO_EFFECT or the
    # words of a refusal}. It outlives the process, so that a version kills every boot that meets it.
    bad_weights: str = ""
    # A file to which what only an engine sees is appended, a JSON object a line: see Switches.note.
    journal: str = ""

    # Of an engine that runs on several nodes: processes, separated by blanks, in whose mount namespaces its other ranks
    # read each adapter too. A rank that does not find the same bytes there ends the engine.
    nodes: str = ""

    def wrong_with(self, digest: str) -> str:
        """What `bad_weights` says of these weights now; empty when they are good."""
        if not self.bad_weights:
            return ""
        return json.loads(pathlib.Path(self.bad_weights).read_text()).get(digest, "")

    def note(self, event: str, **what: object) -> None:
        """Writes down "boot", "loaded", "unload" {live: requests that use it}, "evicted", "reloaded" or "died"."""
        if not self.journal:
            return
        line = json.dumps({"at": time.monotonic(), "pid": os.getpid(), "event": event, **what})
        with open(self.journal, "a") as file:  # one write a line: no other line comes between
            file.write(line + "\n")

    def update(self, changes: dict) -> None:
        for name, value in changes.items():
            if not hasattr(self, name):
                raise HTTPException(422, f"no switch named {name!r}")
            setattr(self, name, type(getattr(self, name))(value))


    def refuses_resume(self) -> bool:
        """Asked once for each resume."""
        refused = self.refuse_resumes > 0
        self.refuse_resumes -= refused
        return refused


class AdapterError(Exception):
    """Why a directory is no adapter; `kind` is missing, no_config, weights, rank, modules or unsupported."""

    def __init__(self, kind: str, message: str, detail: object = None):
        super().__init__(message)
        self.kind, self.detail = kind, detail


@dataclasses.dataclass
class Adapter:
    name: str
    path: str
    digest: str
    rank: int
    shapes_fit: bool
    fatal: bool = False  # whoever uses it ends the engine
    hangs: bool = False  # its load never ends
    pinned: bool = False  # sglang: never the one that is evicted
    inplace: bool = False  # vllm: loaded with load_inplace
    references: int = 0  # sglang: requests that use it
    id: int = dataclasses.field(default_factory=itertools.count(1).__next__)


def model_config(model_dir: str) -> dict:
    return json.loads((pathlib.Path(model_dir) / "config.json").read_text())


def module_shapes(model_dir: str) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of each projection."""
    config = model_config(model_dir)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    q_out = head * config["num_attention_heads"]
    kv_out = head * config.get("num_key_value_heads", config["num_attention_heads"])
    return {
        "q_proj": (hidden, q_out),
        "k_proj": (hidden, kv_out),
        "v_proj": (hidden, kv_out),
        "o_proj": (q_out, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }


def read_adapter(
    name: str, path: str, shapes: dict, modules: set[str], max_rank: int, switches: Switches
) -> Adapter:
    """Reads config and weights as the engines do: rank and modules are judged, shapes only noted."""
    folder = pathlib.Path(path)
    if not folder.is_dir():
        raise AdapterError("missing", str(folder))
    if not (folder / CONFIG).is_file():
        raise AdapterError("no_config", str(folder / CONFIG))
    config = json.loads((folder / CONFIG).read_text())
    if config.get("use_dora"):
        raise AdapterError("unsupported", "DoRA")
    rank = config["r"]
    if rank > max_rank:
        raise AdapterError("rank", f"rank {rank}", rank)
    fit, unknown = True, []
    try:
        with safetensors.safe_open(folder / WEIGHTS, framework="np") as tensors:
            for key in sorted(tensors.keys()):
                module, part = key.split(".")[-3], key.split(".")[-2]
                if module not in modules:
                    unknown.append(".".join(key.split(".")[2:-2]))
                    continue
                inputs, outputs = shapes[module]
                want = [rank, inputs] if part == "lora_A" else [outputs, rank]
                fit = fit and tensors.get_slice(key).get_shape() == want
    except (safetensors.SafetensorError, FileNotFoundError) as error:
        raise AdapterError("weights", str(error)) from None
    if unknown:
        raise AdapterError("modules", f"unknown modules {unknown}", unknown)
    digest = digest_of(folder)
    for pid in switches.nodes.split():
        there = pathlib.Path(f"/proc/{pid}/root{folder}")
        if not (there / WEIGHTS).is_file() or digest_of(there) != digest:
            die(switches, f"{folder} is not on the node of process {pid}", name, digest)
    wrong = switches.wrong_with(digest)
    if wrong == DIE_AT_LOAD:
        die(switches, f"while loading {name}", name, digest)
    if wrong not in ("", DIE_AT_USE, HANG_AT_LOAD, NO_EFFECT):
        raise AdapterError("weights", wrong)
    if wrong == NO_EFFECT:
        digest = BASE_DIGEST
    return Adapter(name, str(path), digest, rank, fit, fatal=wrong == DIE_AT_USE, hangs=wrong == HANG_AT_LOAD)


def prompt_ids(prompt: str | list[int]) -> list[int]:
    return list(prompt.encode()) if isinstance(prompt, str) else list(prompt)


def _draw(digest: str, ids: list[int], position: int) -> int:
    seed = f"{digest}:{ids}:{position}".encode()
    return int.from_bytes(hashlib.sha256(seed).digest()[:8], "big")


def token_at(digest: str, ids: list[int], position: int) -> int:
    return _draw(digest, ids, position) % VOCABULARY


def logprob_at(digest: str, ids: list[int], position: int) -> float:
    return -(_draw(digest, ids, position) >> 32) / 2**32 - 0.5


def prompt_logprobs_of(request: Request) -> list[float]:
    """Of each token of the prompt but the first, which nothing precedes."""
    return [request.jitter + logprob_at(request.digest, request.ids[:i], -1) for i in range(1, len(request.ids))]


def text_of(tokens: list[int]) -> str:
    return "".join(f"w{token:03d}" for token in tokens)


def digest_of(adapter_dir: str | os.PathLike | None) -> str:
    """As fakes name weights; None is the base model. Of the file's tensors, not of its header: what a trainer says of its
    adapter in the metadata changes nothing that an engine computes."""
    if adapter_dir is None:
        return BASE_DIGEST
    whole = (pathlib.Path(adapter_dir) / WEIGHTS).read_bytes()
    return hashlib.sha256(whole[8 + int.from_bytes(whole[:8], "little") :] or whole).hexdigest()


def expected_tokens(
    adapter_dir: str | os.PathLike | None, prompt: str | list[int], count: int
) -> list[int]:
    """What a fake engine answers for the adapter in `adapter_dir`, or for the base model (None)."""
    digest = digest_of(adapter_dir)
    return [token_at(digest, prompt_ids(prompt), i) for i in range(count)]


def expected_logprobs(adapter_dir: str | os.PathLike | None, prompt: list[int]) -> list[float]:
    """Likewise of each token of a prompt but the first."""
    return [logprob_at(digest_of(adapter_dir), prompt[:i], -1) for i in range(1, len(prompt))]


def expected_figure(adapter_dir: str | os.PathLike, text: str) -> float:
    """The same where a model gives a score, or the first number of a vector."""
    return logprob_at(digest_of(adapter_dir), prompt_ids(text), 0)


@dataclasses.dataclass(eq=False)
class Request:
    id: str
    name: str | None  # adapter name as the caller wrote it; None is the base model
    digest: str
    ids: list[int]
    max_tokens: int
    tokens: list[int] = dataclasses.field(default_factory=list)
    running: bool = False
    aborted: bool = False
    jitter: float = 0.0  # what a busy engine's batches add to every log-probability
    on_step: Callable[[], object] = lambda: None  # what the engine does for it before each token

    @property
    def logprobs(self) -> list[float]:
        return [self.jitter + logprob_at(self.digest, self.ids, i) for i in range(len(self.tokens))]

    @property
    def finish(self) -> str | None:
        if self.aborted:
            return "abort"
        return "length" if len(self.tokens) >= self.max_tokens else None


class Scheduler:
    """Runs at most `limit` requests at a time, a token each `token_delay_s`; freezes and aborts on demand."""

    def __init__(self, switches: Switches, limit: int):
        self.switches, self.limit = switches, limit
        self.requests: list[Request] = []
        self.tokens = 0  # made so far, of all requests
        self.frozen = False
        self.changed = asyncio.Condition()

    @property
    def running(self) -> int:
        return sum(r.running for r in self.requests)

    @property
    def waiting(self) -> int:
        return len(self.requests) - self.running

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def wait_for(self, condition) -> None:
        async with self.changed:
            await self.changed.wait_for(condition)

    async def set_frozen(self, frozen: bool) -> None:
        self.frozen = frozen
        await self.notify()

    async def abort(self, matches) -> int:
        chosen = [r for r in self.requests if matches(r)]
        for request in chosen:
            request.aborted = True
        await self.notify()
        return len(chosen)

    async def run(self, request: Request) -> AsyncIterator[Request]:
        """Yields `request` after each of its tokens, and at the end."""
        self.requests.append(request)
        try:
            await self.wait_for(
                lambda: request.aborted or (not self.frozen and self.running < self.limit)
            )
            request.running = not request.aborted
            while request.finish is None:
                await asyncio.sleep(self.switches.token_delay_s)
                await self.wait_for(lambda: request.aborted or not self.frozen)
                if not request.aborted:
                    request.on_step()
                    position = len(request.tokens)
                    request.tokens.append(token_at(request.digest, request.ids, position))
                    self.tokens += 1
                yield request
            if not request.tokens:
                yield request
        finally:
            self.requests.remove(request)
            await self.notify()


def add_control_routes(app: FastAPI, switches: Switches, state) -> None:
    """/_fake/*: what only a test may do."""

    @app.post("/_fake/set")
    async def set_switches(changes: dict) -> dict:
        switches.update(changes)
        return dataclasses.asdict(switches)

    @app.get("/_fake/state")
    async def get_state() -> dict:
        return state()

    @app.post("/_fake/die")
    async def die_now() -> None:
        die(switches, "asked to")


def die(switches: Switches, why: str, name: str = "", digest: str = "") -> None:
    """The whole server ends at once, open connections included, as when an engine's scheduler dies; of the adapter named."""
    switches.note("died", why=why, name=name, digest=digest)
    print(f"fake engine dies: {why}", file=sys.stderr, flush=True)
    os._exit(1)


def die_with_parent() -> None:
    """Linux ends this process when the thread that started it ends, however that ends: a crashed test leaves nothing."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(app: FastAPI, switches: Switches, port: int, startup_delay_s: float) -> None:
    """Serves until SIGTERM. Its first line on stdout is `listening on PORT`, so that a test may ask for port 0."""
    if os.environ.get("LORRY_FAKE_DIES_WITH_PARENT"):
        die_with_parent()
    time.sleep(startup_delay_s)  # tidy: allow sleep: a slow start is what the caller asked for
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(512)
    print(f"listening on {listener.getsockname()[1]}", flush=True)
    switches.note("boot")
    config = uvicorn.Config(
        app, log_level="warning", timeout_keep_alive=5, timeout_graceful_shutdown=1
    )
    uvicorn.Server(config).run(sockets=[listener])
