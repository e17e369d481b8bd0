"""The state of the fake SGLang: registry, reference counts, pauses and what a request answers. fake_sglang.py puts
SGLang's routes in front of it."""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import random
import time
import uuid
from collections import OrderedDict

from engine_core import (
    BASE_DIGEST,
    Adapter,
    AdapterError,
    Request,
    Scheduler,
    Switches,
    die,
    module_shapes,
    prompt_logprobs_of,
    read_adapter,
    text_of,
)
from engine_memory import Memory


class Refused(Exception):
    """A ValueError of the tokenizer process: becomes a 400."""


PUBLISH_STEPS = 15  # --load-snapshot-publish-interval


class Counts:
    """What the scheduler has published of its requests: at each that it reads the prompt of, which is not among them yet, and every
    15 steps; at once where it runs nothing, as while it is paused or idle."""

    def __init__(self, scheduler: Scheduler):
        self._scheduler = scheduler
        self._published = (0, 0)
        self._steps = 0
        self.published_at = time.time()

    def step(self, request: Request) -> None:
        """Before each token of it; the one that runs longest tells a step of all."""
        decoding = [r for r in self._scheduler.requests if r.running and r.tokens]
        if request.tokens and request is decoding[0]:
            self._steps += 1
        if not request.tokens or self._steps >= PUBLISH_STEPS:
            self._steps = 0
            self._published = len(decoding), self._scheduler.waiting
            self.published_at = time.time()

    def shown(self) -> tuple[int, int]:
        if self._scheduler.frozen or not self._scheduler.requests:
            self._published = self._scheduler.running, self._scheduler.waiting
            self.published_at = time.time()
        return self._published


class FakeSglang:
    def __init__(self, args: argparse.Namespace, switches: Switches):
        self.args, self.switches = args, switches
        self.scheduler = Scheduler(switches, args.max_running_requests)
        self.counts = Counts(self.scheduler)
        self.shapes = module_shapes(args.model)
        self.registry: OrderedDict[str, Adapter] = OrderedDict()  # least recently used first
        self.ever_loaded: dict[str, Adapter] = {}
        self.half_loaded: set[str] = set()  # by a load that failed on some ranks alone
        self.update_lock = asyncio.Lock()  # one load or unload at a time, waits included
        self.paused = False
        self.held = 0  # requests that came under a pause, and which none aborts
        self.pausing = asyncio.Lock()
        self.pauses: list[str] = []  # the modes asked for
        self.flushes = 0  # that worked
        self.memory = Memory(switches, ("kv_cache", "weights", "cuda_graph"))  # of which no route tells
        self.live_ids: set[str] = set()
        # Measured durations, as the real one reports: no clock, but different at every start.
        self.startup_time = {
            "load_weight": random.random(),
            "scheduler_e2e": 20 + random.random(),
            "tokenizer_e2e": 30 + random.random(),
        }

    # ---- loading

    def listing(self) -> dict[str, str]:
        return {a.name: a.path for a in self.registry.values() if a.name != self.switches.vanish}

    def read(self, name: str, path: str) -> Adapter:
        modules = set(self.args.lora_target_modules)
        try:
            return read_adapter(
                name, path, self.shapes, modules, self.args.max_lora_rank, self.switches
            )
        except AdapterError as error:
            raise Refused(self.text_of_error(name, path, error)) from None

    def text_of_error(self, name: str, path: str, error: AdapterError) -> str:
        if error.kind == "missing":
            return (
                "Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
                f"'{path}'. Use `repo_type` argument if needed."
            )
        if error.kind == "no_config":
            return f"[Errno 2] No such file or directory: '{error}'"
        if error.kind in ("rank", "modules"):
            rank = error.detail if error.kind == "rank" else 8
            return (
                f"LoRA adapter {name} with rank {rank} is incompatible with the current LoRA memory pool "
                "configuration. Please ensure that the LoRA adapter's rank is within the configured "
                "`--max-lora-rank` and that the target modules are included in `--lora-target-modules`."
            )
        if error.kind == "unsupported":
            return f"LoRA adapter {name} doesn't support DoRA adapters."
        return str(error)

    async def load(
        self, name: str, path: str, pinned: bool, adapter: Adapter | None = None
    ) -> dict:
        async with self.update_lock:
            await asyncio.sleep(self.switches.load_delay_s)
            while self.switches.hold_loads:
                await asyncio.sleep(0.01)
            if self.switches.load_error:
                return self.answer(False, self.switches.load_error, self.listing())
            if name in self.half_loaded:
                text = f"LoRA adapter '{name}' has an incomplete unload. Retry the unload before loading it again."
                return self.answer(False, text, None)
            if self.switches.load_error_of_a_rank:
                self.half_loaded.add(name)
                return self.answer(False, self.switches.load_error_of_a_rank, self.listing())
            if self.args.attn_dp_size > 1 and not pinned:
                text = "DP-attention LoRA requires pinned adapters"
                return self.answer(False, text, self.listing())
            if name in self.registry:
                text = f"Failed to load LoRA adapter {name} because it is already loaded"
                return self.answer(False, text, self.listing())
            pins = sum(a.pinned for a in self.registry.values())
            if pinned and pins >= self.args.max_loras_per_batch - 1:
                text = (
                    f"Failed to load LoRA adapter {name} as a pinned adapter. It is not allowed to pin all slots in "
                    "the LoRA memory pool to avoid starvation for unpinned adapters and base models."
                )
                return self.answer(False, text, self.listing())
            try:
                adapter = adapter or self.read(name, path)
            except Refused as error:
                return self.answer(False, str(error), self.listing())
            await self.scheduler.wait_for(lambda: not adapter.hangs)
            self.memory.must_be_there("weights")
            self.switches.note("loaded", name=name, digest=adapter.digest)
            adapter.pinned = pinned
            self.registry[name] = self.ever_loaded[name] = adapter
            await self.evict()
            return self.answer(True, "", self.listing())

    async def evict(self) -> None:
        limit = self.args.max_loaded_loras
        while limit is not None and len(self.registry) > limit:
            oldest = next((a for a in self.registry.values() if not a.pinned), None)
            if oldest is None:
                return
            self.switches.note("evicted", name=oldest.name, live=oldest.references)
            await self.remove(oldest)

    async def remove(self, adapter: Adapter) -> None:
        """Unregisters at once, then waits for its users; the update lock stays held meanwhile."""
        del self.registry[adapter.name]
        await self.scheduler.wait_for(lambda: adapter.references == 0)

    async def unload(self, name: str) -> dict:
        known = self.registry.get(name)
        self.switches.note("unload", name=name, live=known.references if known else 0)
        async with self.update_lock:
            await asyncio.sleep(self.switches.unload_delay_s)
            if name in self.half_loaded:
                self.half_loaded.discard(name)
                return self.answer(True, "", self.listing())
            adapter = self.registry.get(name)
            if adapter is None:
                keys = f"odict_keys({list(self.registry)})"
                text = f"LoRA with name {name} does not exist. Loaded LoRAs: {keys}"
                return self.answer(False, text, None)
            await self.remove(adapter)
            return self.answer(True, "", self.listing())

    @staticmethod
    def answer(success: bool, text: str, loaded: dict | None) -> dict:
        return {
            "rid": None,
            "http_worker_ipc": None,
            "success": success,
            "error_message": text,
            "loaded_adapters": loaded,
        }

    # ---- generating

    async def acquire(self, name: str | None, count: int) -> Adapter | None:
        if name is None:
            return None
        if name not in self.registry:
            known = self.ever_loaded.get(name) if self.switches.implicit_reload else None
            if known is None:
                raise Refused(
                    f"Got LoRA adapter that has never been loaded: {name}\n"
                    f"All loaded adapters: dict_keys({list(self.ever_loaded)})."
                )
            self.switches.note("reloaded", name=name)
            reply = await self.load(name, known.path, known.pinned)
            if not reply["success"] and name not in self.registry:
                text = f"Failed to implicitly load LoRA adapter {name}: {reply['error_message']}"
                raise Refused(text)
        self.registry.move_to_end(name)
        adapter = self.registry[name]
        adapter.references += count
        return adapter

    async def release(self, adapter: Adapter | None, requests: list[Request]) -> None:
        if adapter is None:
            return
        for request in requests:
            leaks = self.switches.leak_on_queue_abort and request.aborted and not request.running
            twice = self.switches.release_twice and request.aborted and request.running
            adapter.references -= 0 if leaks else 1 + twice
        if self.switches.leak_on_n and len(requests) > 1:
            adapter.references -= 1
        await self.scheduler.notify()

    async def begin(self, rid: str, name: str | None, ids: list[int], params: dict):
        """Waits out a pause, takes the reference, and answers (adapter, requests)."""
        self.held += 1
        try:
            await self.scheduler.wait_for(lambda: not self.paused)
        finally:
            self.held -= 1
        self.memory.must_be_there()
        count = params.get("n") or 1
        adapter = await self.acquire(name, count)
        if adapter is not None and not adapter.shapes_fit:
            die(self.switches, f"LoRA buffer shape of {name} does not match", name or "", adapter.digest)
        if adapter is not None and adapter.fatal:
            die(self.switches, f"at the first use of {name}", name or "", adapter.digest)
        digest = adapter.digest if adapter and not self.switches.serve_base else BASE_DIGEST
        limit = params.get("max_new_tokens") or params.get("max_tokens") or 128
        ids_of = [rid] if count == 1 else [uuid.uuid4().hex for _ in range(count)]
        jitter = self.switches.logprob_noise * random.random()
        made = [Request(i, name, digest, ids, limit, jitter=jitter) for i in ids_of]
        for request in made:
            request.on_step = functools.partial(self.counts.step, request)
        return adapter, made

    @staticmethod
    def finish_reason(request: Request) -> dict | None:
        if request.finish == "abort" and not request.running:
            return {"type": "abort", "message": "Abort in waiting queue"}
        if request.finish == "abort":
            return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        return {"type": "length", "length": request.max_tokens} if request.finish else None

    def chunk(
        self, request: Request, logprobs: bool, since: int = 0, logprob_start: int | None = None
    ) -> dict:
        meta: dict[str, object] = {
            "id": request.id,
            "finish_reason": self.finish_reason(request),
            "prompt_tokens": len(request.ids),
            "completion_tokens": len(request.tokens),
            "cached_tokens": 0,
            "weight_version": "default",
        }
        if request.aborted and not request.running:  # the scheduler dropped it before it read its prompt
            del meta["prompt_tokens"], meta["cached_tokens"]
        if logprobs:
            pairs = zip(request.logprobs, request.tokens)
            meta["output_token_logprobs"] = [[p, t, None] for p, t in pairs]
            # Of the prompt from logprob_start_len on; by default none of it.
            known = [None, *prompt_logprobs_of(request)]
            prompt = zip(known, request.ids)
            start = len(request.ids) if logprob_start is None else logprob_start
            meta["input_token_logprobs"] = [[p, t, None] for p, t in prompt][start:]
        tokens = request.tokens[since:]
        return {"text": text_of(tokens), "output_ids": list(tokens), "meta_info": meta}

    async def finish_all(self, adapter: Adapter | None, requests: list[Request]) -> None:
        async def drain(request: Request) -> None:
            async for _ in self.scheduler.run(request):
                pass

        try:
            await asyncio.gather(*(drain(r) for r in requests))
        finally:
            await self.release(adapter, requests)

    async def stream(self, adapter: Adapter | None, request: Request, render):
        """Server-sent events of `render(request, tokens already sent)`."""
        sent = 0
        try:
            async for _ in self.scheduler.run(request):
                yield f"data: {json.dumps(render(request, sent))}\n\n"
                sent = len(request.tokens)
            yield "data: [DONE]\n\n"
        finally:
            await self.release(adapter, [request])

    # ---- pauses

    async def pause(self, mode: str) -> None:
        self.pauses.append(mode)
        if mode != "abort":
            self.paused = True
            await self.scheduler.set_frozen(True)
            return
        # Aborts each second until nothing runs, which never comes where an earlier pause has frozen what runs. A resume
        # waits until it is over.
        async with self.pausing:
            self.paused = True
            while self.scheduler.requests:
                if not self.scheduler.frozen:
                    await self.scheduler.abort(lambda r: True)
                await asyncio.sleep(0.05 if not self.scheduler.requests else 1.0)

    async def resume(self) -> None:
        async with self.pausing:
            self.paused = False
            await self.scheduler.set_frozen(False)
