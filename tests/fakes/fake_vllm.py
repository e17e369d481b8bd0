"""A strict fake of vLLM 0.32.0's OpenAI server (Python frontend, dev mode): registry, CPU cache of adapters, pauses and
error bodies as seen on the real one (tests/contract/engines runs the same cases against both). It computes nothing;
see engine_core.

usage: .venv/dev/bin/python tests/fakes/fake_vllm.py --port 0 [--model DIR] [flags of vLLM] [--fake '{"switch": value}']
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
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

VERSION = "0.32.0"
BASE = "base"
PAUSE_MODES = ("abort", "wait", "keep")


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
        self.registry: dict[str, Adapter] = {}  # what the HTTP process lists
        self.cache: OrderedDict[int, Adapter] = OrderedDict()  # what the workers hold; LRU first
        self.name_locks: dict[str, asyncio.Lock] = {}
        self.paused = False
        self.started = time.time()

    def listing(self) -> dict[str, str]:
        return {a.name: a.path for a in self.registry.values() if a.name != self.switches.vanish}

    def read(self, name: str, path: str) -> Adapter:
        try:
            modules = set(PROJECTIONS) | {"lm_head", "embed_tokens"}
            return read_adapter(name, path, self.shapes, modules, self.args.max_lora_rank)
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
            self.cache.popitem(last=False)

    async def load(self, name: str, path: str, inplace: bool) -> None:
        if not name or not path:
            raise Refused(400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided.")
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
            adapter = self.read(name, path)
            adapter.inplace = inplace  # vLLM keeps the flag, and reads the directory again at every use
            self.keep(adapter)
            self.registry[name] = adapter

    async def unload(self, name: str) -> None:
        await asyncio.sleep(self.switches.unload_delay_s)
        if name not in self.registry:
            raise Refused(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
        del self.registry[name]

    def resident(self, adapter: Adapter) -> Adapter:
        """The worker's copy; an evicted one is read again, and if that fails the engine core is dead."""
        if adapter.id in self.cache and not adapter.inplace:
            self.cache.move_to_end(adapter.id)
            return self.cache[adapter.id]
        try:
            again = self.read(adapter.name, adapter.path)
        except Refused:
            die(f"{adapter.path} could not be read again")
        self.keep(dataclasses.replace(again, id=adapter.id))
        return again

    async def begin(self, model: str | None, ids: list[int], params: dict, rid: str) -> list[Request]:
        if model and model != BASE and model not in self.registry:
            text = f"The model `{model}` does not exist. Valid aliases: {BASE}."
            raise Refused(404, "NotFoundError", text, "model")
        adapter = self.registry.get(model or BASE)
        await self.scheduler.wait_for(lambda: not self.paused)
        digest = BASE_DIGEST
        if adapter is not None:
            digest = self.resident(adapter).digest
            if self.switches.serve_base:
                digest = BASE_DIGEST
        limit = params.get("max_tokens") or 16
        name = model if adapter else None
        return [Request(f"{rid}-{i}", name, digest, ids, limit) for i in range(params.get("n") or 1)]

    async def drain(self, requests: list[Request]) -> None:
        async def one(request: Request) -> None:
            async for _ in self.scheduler.run(request):
                pass

        await asyncio.gather(*(one(r) for r in requests))

    async def pause(self, mode: str) -> None:
        self.paused = True
        if mode == "abort":
            await self.scheduler.abort(lambda r: True)
        elif mode == "keep":
            await self.scheduler.set_frozen(True)
        else:
            await self.scheduler.wait_for(lambda: not self.scheduler.requests)

    async def resume(self) -> None:
        self.paused = False
        await self.scheduler.set_frozen(False)


def missing_field(body: dict, *names: str) -> None:
    absent = next((n for n in names if not isinstance(body.get(n), str)), None)
    if absent:
        text = (
            f"1 validation error:\n  {{'type': 'missing', 'loc': 'body.{absent}', 'msg': 'Field required', "
            f"'input': '<dict of {len(body)} items>'}}"
        )
        raise Refused(400, "Bad Request", text, f"body.{absent}")


def add_lora_routes(app: FastAPI, engine: FakeVllm) -> None:
    @app.post("/v1/load_lora_adapter")
    async def load(http: HttpRequest):
        body = await http.json()
        missing_field(body, "lora_name", "lora_path")
        work = engine.load(body["lora_name"], body["lora_path"], body.get("load_inplace", False))
        # Shielded: a caller that leaves does not stop the load.
        await asyncio.shield(asyncio.ensure_future(work))
        return PlainTextResponse(f"Success: LoRA adapter '{body['lora_name']}' added successfully.")

    @app.post("/v1/unload_lora_adapter")
    async def unload(http: HttpRequest):
        body = await http.json()
        missing_field(body, "lora_name")
        await asyncio.shield(asyncio.ensure_future(engine.unload(body["lora_name"])))
        return PlainTextResponse(f"Success: LoRA adapter '{body['lora_name']}' removed successfully.")


def logprobs_of(request: Request, since: int) -> dict:
    return {
        "text_offset": [5 * i for i in range(since, len(request.tokens))],
        "token_logprobs": request.logprobs[since:],
        "tokens": [text_of([t]) for t in request.tokens[since:]],
        "top_logprobs": [{text_of([t]): p} for t, p in zip(request.tokens, request.logprobs)][since:],
    }


def add_generate_routes(app: FastAPI, engine: FakeVllm) -> None:
    def render(request: Request, body: dict, rid: str, index: int, since: int, chat: bool, whole: bool):
        tokens = request.tokens[since:]
        choice: dict = {"index": index, "finish_reason": request.finish, "stop_reason": None}
        choice["token_ids"] = tokens if body.get("return_token_ids") else None
        choice["logprobs"] = logprobs_of(request, since) if body.get("logprobs") and not chat else None
        if not chat:
            choice["text"] = text_of(tokens)
        else:
            choice["message" if whole else "delta"] = {"role": "assistant", "content": text_of(tokens)}
        kind = "text_completion" if not chat else "chat.completion" + ("" if whole else ".chunk")
        return {
            "id": rid,
            "object": kind,
            "created": int(time.time()),
            "model": body.get("model") or BASE,
            "choices": [choice],
        }

    def usage(requests: list[Request]) -> dict:
        prompt, completion = len(requests[0].ids), sum(len(r.tokens) for r in requests)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    async def stream(requests: list[Request], body: dict, rid: str, chat: bool):
        request, sent = requests[0], 0
        async for _ in engine.scheduler.run(request):
            yield f"data: {json.dumps(render(request, body, rid, 0, sent, chat, False))}\n\n"
            sent = len(request.tokens)
        if (body.get("stream_options") or {}).get("include_usage"):
            last = render(request, body, rid, 0, sent, chat, False)
            yield f"data: {json.dumps(last | {'choices': [], 'usage': usage(requests)})}\n\n"
        yield "data: [DONE]\n\n"

    async def complete(http: HttpRequest, chat: bool):
        body = await http.json()
        unique = http.headers.get("x-request-id") or body.get("request_id") or uuid.uuid4().hex[:16]
        rid = f"{'chatcmpl' if chat else 'cmpl'}-{unique}"
        prompt = "\n".join(str(m["content"]) for m in body["messages"]) if chat else body["prompt"]
        requests = await engine.begin(body.get("model"), prompt_ids(prompt), body, rid)
        if body.get("stream"):
            return StreamingResponse(stream(requests, body, rid, chat), media_type="text/event-stream")
        await engine.drain(requests)
        replies = [render(r, body, rid, i, 0, chat, True) for i, r in enumerate(requests)]
        choices = [c for reply in replies for c in reply["choices"]]
        return replies[0] | {"choices": choices, "usage": usage(requests)}

    @app.post("/v1/completions")
    async def completions(http: HttpRequest):
        return await complete(http, chat=False)

    @app.post("/v1/chat/completions")
    async def chat_completions(http: HttpRequest):
        return await complete(http, chat=True)

    @app.post("/inference/v1/generate")
    async def generate(http: HttpRequest):
        body = await http.json()
        rid = f"generate-tokens-{body.get('request_id') or uuid.uuid4().hex[:16]}"
        params = body.get("sampling_params") or {}
        requests = await engine.begin(body.get("model"), body["token_ids"], params, rid)
        await engine.drain(requests)
        choices = [
            {"index": i, "token_ids": r.tokens, "finish_reason": r.finish, "logprobs": None}
            for i, r in enumerate(requests)
        ]
        return {"request_id": rid, "choices": choices}

    @app.post("/tokenize")
    async def tokenize(http: HttpRequest) -> dict:
        ids = prompt_ids((await http.json())["prompt"])
        return {"count": len(ids), "max_model_len": 1024, "tokens": ids}


def add_dev_routes(app: FastAPI, engine: FakeVllm) -> None:
    @app.post("/pause")
    async def pause(mode: str = "abort"):
        if mode not in PAUSE_MODES:
            text = f"1 validation error:\n  Input should be 'abort', 'wait' or 'keep', not {mode!r}"
            raise Refused(400, "Bad Request", text, "query.mode")
        await engine.pause(mode)
        return {"status": "paused"}

    @app.post("/resume")
    async def resume():
        await engine.resume()
        return {"status": "resumed"}

    @app.get("/is_paused")
    async def is_paused():
        return {"is_paused": engine.paused}

    @app.post("/abort_requests")
    async def abort(http: HttpRequest):
        wanted = (await http.json()).get("request_ids")
        count = await engine.scheduler.abort(lambda r: wanted is None or r.id in wanted)
        return {"status": "aborted", "aborted": count}

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache():
        return {"success": not engine.scheduler.requests}

    @app.get("/server_info")
    async def server_info(config_format: str = "text"):
        args = engine.args
        lora = {
            "max_lora_rank": args.max_lora_rank,
            "max_loras": args.max_loras,
            "max_cpu_loras": args.max_cpu_loras,
            "lora_dtype": "torch.float32",
        }
        config = {
            "model_config": {"model": args.model, "served_model_name": BASE},
            "lora_config": lora if args.enable_lora else None,
            "parallel_config": {"tensor_parallel_size": 1, "data_parallel_size": args.data_parallel_size},
        }
        return {"vllm_config": config if config_format == "json" else str(config)}


def add_info_routes(app: FastAPI, engine: FakeVllm) -> None:
    created = int(time.time())

    @app.get("/health")
    @app.get("/ping")
    async def health():
        return Response()

    @app.get("/version")
    async def version() -> dict:
        return {"version": VERSION}

    @app.get("/v1/models")
    async def models() -> dict:
        def card(name: str, root: str, parent: str | None, length: int | None) -> dict:
            return {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "vllm",
                "root": root,
                "parent": parent,
                "max_model_len": length,
            }

        cards = [card(BASE, engine.args.model or BASE, None, 1024)]
        cards += [card(name, path, BASE, None) for name, path in engine.listing().items()]
        return {"object": "list", "data": cards}

    @app.get("/metrics")
    async def metrics():
        labels = f'{{engine="0",model_name="{BASE}"}}'
        text = (
            "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.\n"
            "# TYPE process_start_time_seconds gauge\n"
            f"process_start_time_seconds {engine.started:.11e}\n"
            "# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running{labels} {float(engine.scheduler.running)}\n"
            "# TYPE vllm:num_requests_waiting gauge\n"
            f"vllm:num_requests_waiting{labels} {float(engine.scheduler.waiting)}\n"
        )
        return PlainTextResponse(text)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", help="the base model's directory; its shapes are checked against")
    parser.add_argument("--enable-lora", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--max-lora-rank", type=int, default=16)
    parser.add_argument("--max-loras", type=int, default=4)
    parser.add_argument("--max-cpu-loras", type=int, default=8)
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument("--data-parallel-size", type=int, default=1)
    parser.add_argument("--startup-delay", type=float, default=0.0, help="seconds before the port opens")
    parser.add_argument("--fake", type=json.loads, default={}, help="switches, as JSON (engine_core.Switches)")
    return parser.parse_args()


def is_on(variable: str) -> bool:
    return os.environ.get(variable, "1").lower() in ("1", "true")


def main() -> None:
    args = parse_args()
    switches = Switches()
    switches.update(args.fake)
    app, engine = FastAPI(), FakeVllm(args, switches)
    app.add_exception_handler(Refused, lambda _, error: error.reply())
    adders = [add_generate_routes, add_info_routes]
    # The real one has these routes only where its environment says so; unset means on here.
    if is_on("VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        adders.append(add_lora_routes)
    if is_on("VLLM_SERVER_DEV_MODE"):
        adders.append(add_dev_routes)
    for add in adders:
        add(app, engine)

    def state() -> dict:
        return {
            "running": engine.scheduler.running,
            "waiting": engine.scheduler.waiting,
            "paused": engine.paused,
            "cached": [a.name for a in engine.cache.values()],
            "listed": engine.listing(),
        }

    add_control_routes(app, switches, state)
    serve(app, args.port, args.startup_delay)


if __name__ == "__main__":
    main()
