"""The state of the fake vLLM: registry, the workers' cache of adapters, pauses. fake_vllm.py puts vLLM's routes in
front of it."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import random
import time
from collections import OrderedDict

from engine_core import (
    BASE_DIGEST,
    PROJECTIONS,
    Adapter,
    AdapterError,
    Request,
    Scheduler,
    Switches,
    die,
    model_config,
    module_shapes,
    read_adapter,
)
from engine_memory import GONE, Memory
from fastapi.responses import JSONResponse

BASE = "base"


class Refused(Exception):
    def __init__(self, status: int, kind: str, message: str, param: str | None = None):
        super().__init__(message)
        self.status, self.kind, self.param = status, kind, param

    def reply(self) -> JSONResponse:
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return JSONResponse({"error": error}, self.status)


class FakeVllm:
    def __init__(self, args: argparse.Namespace, switches: Switches):
        self.args, self.switches = args, switches
        self.scheduler = Scheduler(switches, args.max_num_seqs)
        self.shapes = module_shapes(args.model)
        self.model_config = model_config(args.model)
        self.registry: dict[str, Adapter] = {}  # what the HTTP process lists
        self.cache: OrderedDict[int, Adapter] = OrderedDict()  # what the workers hold; LRU first
        self.slot_of: OrderedDict[int, int] = OrderedDict()  # of the batch, by an adapter's id; LRU first
        self.in_slot: list[str | None] = [None] * args.max_loras  # whose weights are there
        self.name_locks: dict[str, asyncio.Lock] = {}
        self.paused = False
        self.pauses: list[str] = []  # the modes asked for
        self.flushes = 0
        self.started = time.time()
        self.awake = True
        self.memory = Memory(switches, ("weights", "kv_cache"))
        self.has_begun = False  # a request was scheduled

    def listing(self) -> dict[str, str]:
        return {a.name: a.path for a in self.registry.values() if a.name != self.switches.vanish}

    def read(self, name: str, path: str) -> Adapter:
        try:
            modules = set(PROJECTIONS) | {"lm_head", "embed_tokens"}
            return read_adapter(
                name, path, self.shapes, modules, self.args.max_lora_rank, self.switches
            )
        except AdapterError as error:
            if error.kind in ("missing", "no_config"):
                text = f"Loading lora {name} failed: No adapter found for <path>"
                raise Refused(404, "NotFoundError", text) from None
            worker = {
                "rank": f"LoRA rank {error.detail} is greater than max_lora_rank {self.args.max_lora_rank}.",
                "unsupported": "vLLM does not yet support DoRA.",
                "modules": "While loading <path>, expected target modules in "
                f"{set(PROJECTIONS)} but received {error.detail}. "
                "Please verify that the loaded LoRA module is correct",
            }.get(error.kind, str(error))
            text = (
                f"Call to add_lora method failed: Worker failed with error '{worker}', "
                "please check the stack trace above for the root cause"
            )
            raise Refused(500, "InternalServerError", text) from None

    def keep(self, adapter: Adapter) -> None:
        self.cache[adapter.id] = adapter
        self.cache.move_to_end(adapter.id)
        while len(self.cache) > self.args.max_cpu_loras:
            _, oldest = self.cache.popitem(last=False)
            # What was unloaded leaves the workers only now, its name perhaps loaded anew under another id.
            listed = self.registry.get(oldest.name)
            if listed is not None and listed.id == oldest.id:
                self.switches.note("evicted", name=oldest.name, live=self.live(oldest.name))
        self.activate(adapter)

    def activate(self, adapter: Adapter) -> None:
        """Puts it into a slot of the batch, from where only another drives it out."""
        slot = self.slot_of.pop(adapter.id, None)
        if slot is None:
            free = set(range(len(self.in_slot))) - set(self.slot_of.values())
            slot = min(free) if free else self.slot_of.popitem(last=False)[1]
        self.slot_of[adapter.id] = slot
        self.in_slot[slot] = adapter.digest

    def weights_of_base(self) -> str:
        """On a CPU "no adapter" is the index -1, and that is the last slot, in a step that has a request for an adapter."""
        is_mixed = self.args.device == "cpu" and any(r.name for r in self.scheduler.requests)
        return (self.in_slot[-1] if is_mixed else None) or self.switches.other_base or BASE_DIGEST

    def live(self, name: str) -> int:
        return sum(r.name == name for r in self.scheduler.requests)

    async def load(self, name: str, path: str, inplace: bool) -> None:
        if not name or not path:
            raise Refused(
                400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided."
            )
        if name == BASE:
            text = f"The lora adapter '{name}' conflicts with a served base model."
            raise Refused(400, "InvalidUserInput", text)
        async with self.name_locks.setdefault(name, asyncio.Lock()):
            if name in self.registry and not inplace:
                text = (
                    f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in "
                    "place, set 'load_inplace' to True."
                )
                raise Refused(400, "InvalidUserInput", text)
            await asyncio.sleep(self.switches.load_delay_s)
            while self.switches.hold_loads:
                await asyncio.sleep(0.01)
            if self.switches.load_error:
                raise Refused(500, "InternalServerError", self.switches.load_error)
            if not self.args.enable_lora:
                text = "Call to add_lora method failed: LoRA is not enabled. Use --enable-lora to enable LoRA."
                raise Refused(500, "InternalServerError", text)
            self.memory.must_be_there("weights")
            adapter = self.read(name, path)
            adapter.inplace = (
                inplace  # vLLM keeps the flag, and reads the directory again at every use
            )
            await self.scheduler.wait_for(lambda: not adapter.hangs)
            self.switches.note("loaded", name=name, digest=adapter.digest)
            self.keep(adapter)
            self.registry[name] = adapter

    async def unload(self, name: str) -> None:
        self.switches.note("unload", name=name, live=self.live(name))
        await asyncio.sleep(self.switches.unload_delay_s)
        if name not in self.registry:
            raise Refused(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
        del self.registry[name]

    def resident(self, adapter: Adapter) -> Adapter:
        """The worker's copy; an evicted one is read again, and if that fails the engine core is dead."""
        if adapter.id in self.cache and not adapter.inplace:
            self.cache.move_to_end(adapter.id)
            self.activate(adapter)
            return self.cache[adapter.id]
        try:
            again = self.read(adapter.name, adapter.path)
        except Refused:
            die(self.switches, f"{adapter.path} could not be read again", adapter.name)
        self.switches.note("reloaded", name=adapter.name)
        self.keep(dataclasses.replace(again, id=adapter.id))
        return again

    async def begin(
        self, model: str | None, ids: list[int], params: dict, rid: str
    ) -> list[Request]:
        if model and model != BASE and model not in self.registry:
            text = f"The model `{model}` does not exist. Valid aliases: {BASE}."
            raise Refused(404, "NotFoundError", text, "model")
        adapter = self.registry.get(model or BASE)
        await self.scheduler.wait_for(lambda: not self.paused)
        self.memory.must_be_there()
        digest = self.weights_of_base()
        if adapter is not None:
            digest = self.resident(adapter).digest
            if adapter.fatal:
                die(self.switches, f"at the first use of {adapter.name}", adapter.name, digest)
            if self.switches.serve_base:
                digest = self.switches.other_base or BASE_DIGEST
        wants = params.get("prompt_logprobs") is not None
        if wants and self.switches.die_of_prompt_logprobs and self.scheduler.requests:
            die(self.switches, "prompt log-probabilities in a step with another request")
        limit = params.get("max_tokens") or 16
        self.has_begun = True
        name = model if adapter else None
        jitter = self.switches.logprob_noise * random.random()

        def on_step() -> None:
            if adapter is not None and not adapter.inplace:
                self.resident(adapter)  # in use, so the last to be evicted; or read again

        return [
            Request(f"{rid}-{i}", name, digest, ids, limit, jitter=jitter, on_step=on_step)
            for i in range(params.get("n") or 1)
        ]

    async def drain(self, requests: list[Request]) -> None:
        async def one(request: Request) -> None:
            async for _ in self.scheduler.run(request):
                pass

        await asyncio.gather(*(one(r) for r in requests))

    async def pause(self, mode: str, clear_cache: bool = True) -> None:
        self.pauses.append(mode)
        self.flushes += clear_cache
        self.paused = True
        if mode == "abort":
            await self.scheduler.abort(lambda r: True)
        elif mode == "keep":
            await self.scheduler.set_frozen(True)
        else:
            await self.scheduler.wait_for(lambda: not self.scheduler.requests)

    async def sleep(self, level: int, mode: str) -> None:
        live = len(self.scheduler.requests)
        await self.pause(mode, clear_cache=level >= 1)
        self.awake = False
        if level < 1:  # nothing is scheduled, and no memory is released
            return
        self.memory.release(None, self.registry, live)
        if self.switches.after_sleep == GONE:
            self.cache.clear()

    async def wake_up(self, tags: list[str] | None) -> None:
        self.memory.take(tags)
        if not self.memory.released:
            self.awake = True
            await self.resume()

    async def resume(self) -> None:
        self.paused = False
        await self.scheduler.set_frozen(False)
