"""A strict fake of SGLang 0.5.23's HTTP server: registry, reference counts, pauses and error bodies as seen on the real
one (tests/contract/engines runs the same cases against both). It computes nothing; see engine_core.

usage: .venv/dev/bin/python tests/fakes/fake_sglang.py --port 0 [--model DIR] [flags of SGLang] [--fake '{"switch": value}']
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
import hashlib
import json
import random
import time
import uuid
from collections import OrderedDict

from fastapi import FastAPI, Request as HttpRequest
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from engine_core import (
    BASE_DIGEST,
    PROJECTIONS,
    Adapter,
    AdapterError,
    Request,
    Scheduler,
    Switches,
    add_control_routes,
    die,
    module_shapes,
    prompt_ids,
    read_adapter,
    serve,
    text_of,
)

VERSION = "0.5.23"
PAUSE_MODES = ("abort", "retract", "in_place")


class Refused(Exception):
    """A ValueError of the tokenizer process: becomes a 400."""


class FakeSglang:
    def __init__(self, args: argparse.Namespace, switches: Switches):
        self.args, self.switches = args, switches
        self.scheduler = Scheduler(switches, args.max_running_requests)
        self.shapes = module_shapes(args.model)
        self.registry: OrderedDict[str, Adapter] = OrderedDict()  # least recently used first
        self.ever_loaded: dict[str, Adapter] = {}
        self.update_lock = asyncio.Lock()  # one load or unload at a time, waits included
        self.paused = False
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
            return read_adapter(name, path, self.shapes, modules, self.args.max_lora_rank)
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

    async def load(self, name: str, path: str, pinned: bool, adapter: Adapter | None = None) -> dict:
        async with self.update_lock:
            await asyncio.sleep(self.switches.load_delay_s)
            while self.switches.hold_loads:
                await asyncio.sleep(0.01)
            if self.switches.load_error:
                return self.answer(False, self.switches.load_error, self.listing())
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
            await self.remove(oldest)

    async def remove(self, adapter: Adapter) -> None:
        """Unregisters at once, then waits for its users; the update lock stays held meanwhile."""
        del self.registry[adapter.name]
        await self.scheduler.wait_for(lambda: adapter.references == 0)

    async def unload(self, name: str) -> dict:
        async with self.update_lock:
            await asyncio.sleep(self.switches.unload_delay_s)
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
            adapter.references -= 0 if leaks else 1
        if self.switches.leak_on_n and len(requests) > 1:
            adapter.references -= 1
        await self.scheduler.notify()

    async def begin(self, rid: str, name: str | None, ids: list[int], params: dict):
        """Waits out a pause, takes the reference, and answers (adapter, requests)."""
        await self.scheduler.wait_for(lambda: not self.paused)
        count = params.get("n") or 1
        adapter = await self.acquire(name, count)
        if adapter is not None and not adapter.shapes_fit:
            die(f"LoRA buffer shape of {name} does not match")
        digest = adapter.digest if adapter and not self.switches.serve_base else BASE_DIGEST
        limit = params.get("max_new_tokens") or params.get("max_tokens") or 128
        ids_of = [rid] if count == 1 else [uuid.uuid4().hex for _ in range(count)]
        return adapter, [Request(i, name, digest, ids, limit) for i in ids_of]

    @staticmethod
    def finish_reason(request: Request) -> dict | None:
        if request.finish == "abort" and not request.running:
            return {"type": "abort", "message": "Abort in waiting queue"}
        if request.finish == "abort":
            return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        return {"type": "length", "length": request.max_tokens} if request.finish else None

    def chunk(self, request: Request, logprobs: bool, since: int = 0) -> dict:
        meta = {
            "id": request.id,
            "finish_reason": self.finish_reason(request),
            "prompt_tokens": len(request.ids),
            "completion_tokens": len(request.tokens),
            "cached_tokens": 0,
            "weight_version": "default",
        }
        if logprobs:
            pairs = zip(request.logprobs, request.tokens)
            meta["output_token_logprobs"] = [[p, t, None] for p, t in pairs]
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
        self.paused = True
        if mode == "abort":
            while self.scheduler.requests:
                await self.scheduler.abort(lambda r: True)
                await asyncio.sleep(0.05 if not self.scheduler.requests else 1.0)
        else:
            await self.scheduler.set_frozen(True)

    async def resume(self) -> None:
        self.paused = False
        await self.scheduler.set_frozen(False)


def openai_error(status: int, text: str) -> JSONResponse:
    kind = "BadRequestError" if status == 400 else "NotFoundError"
    body = {"object": "error", "message": text, "type": kind, "param": None, "code": status}
    return JSONResponse(body, status)


def lora_reply(reply: dict) -> JSONResponse:
    return JSONResponse(reply, 200 if reply["success"] else 400)


def missing_field(body: dict, *names: str) -> JSONResponse | None:
    absent = [n for n in names if not isinstance(body.get(n), str)]
    if not absent:
        return None
    text = f"{len(absent)} validation errors:\n  " + "\n  ".join(
        f"{{'type': 'missing', 'loc': ('body', '{n}'), 'msg': 'Field required'}}" for n in absent
    )
    reply = openai_error(400, text)
    reply.body = reply.body.replace(b"BadRequestError", b"Bad Request")
    reply.headers["content-length"] = str(len(reply.body))
    return reply


def add_lora_routes(app: FastAPI, engine: FakeSglang) -> None:
    disabled = "LoRA is not enabled. Please set `--enable-lora` to enable LoRA."

    def off() -> JSONResponse | None:
        if not engine.args.enable_lora:
            return lora_reply(engine.answer(False, disabled, None))
        if engine.args.dp_size != 1:
            raise AssertionError("data-parallel replicas are not supported for dynamic lora loading")
        return None

    @app.post("/load_lora_adapter")
    async def load(http: HttpRequest):
        body = await http.json()
        refused = missing_field(body, "lora_name", "lora_path") or off()
        if refused:
            return refused
        # Shielded: a caller that leaves does not stop the load.
        work = engine.load(body["lora_name"], body["lora_path"], body.get("pinned", False))
        return lora_reply(await asyncio.shield(asyncio.ensure_future(work)))

    @app.post("/unload_lora_adapter")
    async def unload(http: HttpRequest):
        body = await http.json()
        refused = missing_field(body, "lora_name") or off()
        if refused:
            return refused
        work = engine.unload(body["lora_name"])
        return lora_reply(await asyncio.shield(asyncio.ensure_future(work)))

    @app.post("/load_lora_adapter_from_tensors")
    async def load_tensors(http: HttpRequest):
        body = await http.json()
        refused = missing_field(body, "lora_name") or off()
        if refused:
            return refused
        try:
            payload = base64.b64decode(body["serialized_named_tensors"][0], validate=True)
        except (binascii.Error, KeyError, IndexError):
            die("payload of load_lora_adapter_from_tensors is no base64")
        if payload[:1] != b"\x80" or body.get("expected_checksums"):
            die("payload of load_lora_adapter_from_tensors is no pickle, or differs from its checksums")
        digest = hashlib.sha256(payload).hexdigest()
        rank = body["config_dict"]["r"]
        adapter = Adapter(body["lora_name"], "__tensor__", digest, rank, shapes_fit=True)
        return lora_reply(await engine.load(adapter.name, adapter.path, False, adapter))


def add_generate_routes(app: FastAPI, engine: FakeSglang) -> None:
    @app.api_route("/generate", methods=["POST", "PUT"])
    async def generate(http: HttpRequest):
        body = await http.json()
        rid, logprobs = body.get("rid") or uuid.uuid4().hex, body.get("return_logprob", False)
        if rid in engine.live_ids:
            return JSONResponse({"error": {"message": f"Duplicate request ID detected: {rid}"}}, 400)
        ids = body["input_ids"] if "input_ids" in body else prompt_ids(body["text"])
        engine.live_ids.add(rid)
        try:
            params = body.get("sampling_params") or {}
            adapter, requests = await engine.begin(rid, body.get("lora_path"), ids, params)
            if body.get("stream"):
                return StreamingResponse(
                    engine.stream(adapter, requests[0], render(logprobs)), media_type="text/event-stream"
                )
            await engine.finish_all(adapter, requests)
        except Refused as error:
            return JSONResponse({"error": {"message": str(error)}}, 400)
        finally:
            engine.live_ids.discard(rid)
        replies = [engine.chunk(r, logprobs) for r in requests]
        return replies[0] if len(replies) == 1 else replies

    def render(logprobs: bool):
        # Streams repeat everything from the start unless --incremental-streaming-output is given.
        incremental = engine.args.incremental_streaming_output
        return lambda request, sent: engine.chunk(request, logprobs, sent if incremental else 0)

    async def complete(http: HttpRequest, chat: bool):
        body = await http.json()
        base, _, suffix = str(body.get("model", "")).partition(":")
        name = suffix or body.get("lora_path")
        if name is None and base not in ("", "base") and not engine.switches.base_for_unknown:
            return openai_error(404, f"The model {base} does not exist.")
        prompt = "\n".join(str(m["content"]) for m in body["messages"]) if chat else body["prompt"]
        rid = body.get("rid") or uuid.uuid4().hex
        try:
            adapter, requests = await engine.begin(rid, name, prompt_ids(prompt), body)
        except Refused as error:
            return openai_error(400, str(error))
        kind = "chat.completion" if chat else "text_completion"

        def render(request: Request, sent: int, whole: bool = False) -> dict:
            text = text_of(request.tokens[sent:])
            choice: dict = {"index": 0, "logprobs": None, "finish_reason": request.finish}
            if not chat:
                choice["text"] = text
            else:
                choice["message" if whole else "delta"] = {"role": "assistant", "content": text}
            return {
                "id": rid,
                "object": kind if whole or not chat else "chat.completion.chunk",
                "created": int(time.time()),
                "model": body.get("model"),
                "choices": [choice],
            }

        if body.get("stream"):
            return StreamingResponse(
                engine.stream(adapter, requests[0], render), media_type="text/event-stream"
            )
        await engine.finish_all(adapter, requests)
        return render(requests[0], 0, whole=True) | {
            "usage": {
                "prompt_tokens": len(requests[0].ids),
                "completion_tokens": len(requests[0].tokens),
                "total_tokens": len(requests[0].ids) + len(requests[0].tokens),
            },
            "metadata": {"weight_version": "default"},
        }

    @app.post("/v1/completions")
    async def completions(http: HttpRequest):
        return await complete(http, chat=False)

    @app.post("/v1/chat/completions")
    async def chat_completions(http: HttpRequest):
        return await complete(http, chat=True)


def add_pause_routes(app: FastAPI, engine: FakeSglang) -> None:
    def done(what: str) -> dict:
        return {"message": f"Generation {what} successfully.", "status": "ok"}

    @app.post("/pause_generation")
    async def pause(http: HttpRequest):
        mode = (await http.json()).get("mode", "abort")
        if mode not in PAUSE_MODES:
            return openai_error(400, f"Input should be 'abort', 'retract' or 'in_place', not {mode!r}")
        await engine.pause(mode)
        return done("paused")

    @app.post("/continue_generation")
    async def resume(http: HttpRequest):
        await http.json()
        await engine.resume()
        return done("continued")

    @app.post("/abort_request")
    async def abort(http: HttpRequest):
        body = await http.json()
        rid = body.get("rid", "")
        if body.get("abort_all"):
            await engine.scheduler.abort(lambda r: True)
        elif any(r.id == rid for r in engine.scheduler.requests):
            # The scheduler aborts by prefix, once the HTTP process has found the exact id.
            await engine.scheduler.abort(lambda r: r.id.startswith(rid))
        return Response()

    @app.api_route("/flush_cache", methods=["GET", "POST"])
    async def flush():
        if engine.scheduler.requests and engine.paused:
            return PlainTextResponse("Flush cache failed.\n", 400)
        return PlainTextResponse("Cache flushed.\nPlease check backend logs for more details.\n")


def add_info_routes(app: FastAPI, engine: FakeSglang) -> None:
    args, created = engine.args, int(time.time())

    @app.get("/health")
    @app.get("/health_generate")
    async def health():
        return Response()

    @app.get("/server_info")
    @app.get("/get_server_info")
    async def server_info() -> dict:
        info = {k: v for k, v in vars(args).items() if k not in ("port", "fake", "startup_delay", "model")}
        return info | {
            "model_path": args.model,
            "served_model_name": "base",
            "tp_size": 1,
            "version": VERSION,
            "startup_time": engine.startup_time,
            "internal_states": [{}],
        }

    @app.get("/model_info")
    @app.get("/get_model_info")
    async def model_info() -> dict:
        return {"model_path": args.model, "served_model_name": "base", "weight_version": "default"}

    @app.get("/v1/models")
    async def models() -> dict:
        def card(name: str, root: str, parent: str | None, length: int | None) -> dict:
            return {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "sglang",
                "root": root,
                "parent": parent,
                "max_model_len": length,
            }

        cards = [card("base", "base", None, 1024)]
        cards += [card(name, path, "base", None) for name, path in engine.listing().items()]
        return {"object": "list", "data": cards}

    @app.get("/v1/loads")
    async def loads() -> dict:
        load = {
            "dp_rank": 0,
            "num_running_reqs": engine.scheduler.running,
            "num_waiting_reqs": engine.scheduler.waiting,
        }
        return {"timestamp": "", "version": VERSION, "loads": [load]}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", help="the base model's directory; its shapes are checked against")
    parser.add_argument("--enable-lora", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--max-lora-rank", type=int, default=16)
    parser.add_argument("--max-loras-per-batch", type=int, default=4)
    parser.add_argument("--max-loaded-loras", type=int)
    parser.add_argument("--lora-target-modules", nargs="+", default=list(PROJECTIONS))
    parser.add_argument("--max-running-requests", type=int, default=8)
    parser.add_argument("--tokenizer-worker-num", type=int, default=1)
    parser.add_argument("--dp-size", type=int, default=1)
    parser.add_argument("--incremental-streaming-output", action="store_true")
    parser.add_argument("--startup-delay", type=float, default=0.0, help="seconds before the port opens")
    parser.add_argument("--fake", type=json.loads, default={}, help="switches, as JSON (engine_core.Switches)")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    switches = Switches()
    switches.update(args.fake)
    app, engine = FastAPI(), FakeSglang(args, switches)
    for add in (add_lora_routes, add_generate_routes, add_pause_routes, add_info_routes):
        add(app, engine)

    def state() -> dict:
        return {
            "running": engine.scheduler.running,
            "waiting": engine.scheduler.waiting,
            "paused": engine.paused,
            "references": {a.name: a.references for a in engine.ever_loaded.values()},
            "listed": engine.listing(),
        }

    add_control_routes(app, switches, state)
    serve(app, args.port, args.startup_delay)


if __name__ == "__main__":
    main()
