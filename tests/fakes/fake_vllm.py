"""A strict fake of vLLM 0.32.0's OpenAI server (Python frontend, dev mode): registry, CPU cache of adapters, pauses and
error bodies as seen on the real one (tests/contract/engines runs the same cases against both). It computes nothing;
see engine_core.

usage: fake_vllm.py --port 0 [--model DIR] [flags of vLLM] [--fake '{"switch": value}']
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import time
import uuid

from engine_core import (
    DEFAULT_MODEL,
    Request,
    Switches,
    add_control_routes,
    logprob_at,
    prompt_ids,
    prompt_logprobs_of,
    serve,
    text_of,
)
from engine_memory import add_areal_routes, add_vllm_memory_routes
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from vllm_state import BASE, FakeVllm, Refused

VERSION = "0.32.0"
PAUSE_MODES = ("abort", "wait", "keep")


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
        return PlainTextResponse(
            f"Success: LoRA adapter '{body['lora_name']}' removed successfully."
        )


def logprobs_of(request: Request, body: dict, since: int) -> dict:
    by_id = body.get("return_tokens_as_token_ids")
    words = {t: f"token_id:{t}" if by_id else text_of([t]) for t in request.tokens + body.get("logprob_token_ids", [])}
    top = [{words[t]: p} for t, p in zip(request.tokens, request.logprobs)]
    if top:  # of the first token; what a prompt's own log-probabilities say of the same ones
        asked = request.jitter + logprob_at(request.digest, request.ids, -1)
        top[0] |= {words[t]: asked for t in body.get("logprob_token_ids", [])}
    return {
        "text_offset": [5 * i for i in range(since, len(request.tokens))],
        "token_logprobs": request.logprobs[since:],
        "tokens": [words[t] for t in request.tokens[since:]],
        "top_logprobs": top[since:],
    }


def render(request: Request, body: dict, rid: str, index: int, since: int, chat: bool, whole: bool):
    tokens = request.tokens[since:]
    choice: dict = {"index": index, "finish_reason": request.finish, "stop_reason": None}
    choice["token_ids"] = tokens if body.get("return_token_ids") else None
    if not chat:
        choice["prompt_token_ids"] = request.ids if body.get("return_token_ids") and since == 0 else None
    # 0 asks for the generated tokens' own log-probabilities.
    wanted = body.get("logprobs") is not None and not chat
    choice["logprobs"] = logprobs_of(request, body, since) if wanted else None
    if not chat and whole and body.get("prompt_logprobs") is not None:
        known = zip(request.ids[1:], prompt_logprobs_of(request))
        own = [{str(t): {"logprob": p, "rank": 1, "decoded_token": text_of([t])}} for t, p in known]
        choice["prompt_logprobs"] = [None, *own]
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


def add_generate_routes(app: FastAPI, engine: FakeVllm) -> None:
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
        batch = isinstance(prompt, list) and not isinstance(prompt[0], int)
        requests: list[Request] = []
        for i, each in enumerate(prompt if batch else [prompt]):
            name = rid if chat else f"{rid}-{i}"
            requests += await engine.begin(body.get("model"), prompt_ids(each), body, name)
        if body.get("stream"):
            return StreamingResponse(
                stream(requests, body, rid, chat), media_type="text/event-stream"
            )
        await engine.drain(requests)
        if body.get("logprobs") is not None and any(math.isnan(r.jitter) for r in requests):
            raise Refused(400, "BadRequestError", "Out of range float values are not JSON compliant: nan")
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
        unique = http.headers.get("x-request-id") or body.get("request_id") or uuid.uuid4().hex[:16]
        rid = f"generate-tokens-{unique}"
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


def add_other_model_routes(app: FastAPI, engine: FakeVllm) -> None:
    """Routes that generate nothing, or in another API's words."""

    @app.post("/v1/embeddings")
    async def embeddings(http: HttpRequest):
        body = await http.json()
        inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = []
        for i, text in enumerate(inputs):
            request = (await engine.begin(body.get("model"), prompt_ids(text), {}, "embd"))[0]
            vector = [logprob_at(request.digest, request.ids, k) for k in range(4)]
            data.append({"index": i, "object": "embedding", "embedding": vector})
        name = body.get("model") or BASE
        return {"id": "embd-1", "object": "list", "model": name, "data": data, "usage": {}}

    @app.post("/v1/messages")
    async def messages(http: HttpRequest):
        body = await http.json()
        prompt = "\n".join(str(m["content"]) for m in body["messages"])
        requests = await engine.begin(body.get("model"), prompt_ids(prompt), body, "msg")
        await engine.drain(requests)
        return {
            "id": f"msg_{uuid.uuid4().hex[:16]}",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": text_of(requests[0].tokens)}],
            "model": body.get("model") or BASE,
            "stop_reason": "max_tokens",
        }


def add_pooling_routes(app: FastAPI, engine: FakeVllm) -> None:
    """What models of scores and classes answer (entrypoints/pooling): figures that follow from the adapter's weights."""

    async def figure(body: dict, text: str) -> float:
        request = (await engine.begin(body.get("model"), prompt_ids(text), {}, "pool"))[0]
        return logprob_at(request.digest, request.ids, 0)

    def listed(value) -> list:
        return value if isinstance(value, list) else [value]

    def reply(body: dict, **fields) -> dict:
        return {"id": "pool-1", "model": body.get("model") or BASE, "usage": {}} | fields

    @app.post("/score")
    @app.post("/v1/score")
    async def score(http: HttpRequest):
        body = await http.json()
        scores = [await figure(body, body["text_1"] + text) for text in listed(body["text_2"])]
        data = [{"index": i, "object": "score", "score": each} for i, each in enumerate(scores)]
        return reply(body, object="list", data=data)

    @app.post("/rerank")
    @app.post("/v1/rerank")
    @app.post("/v2/rerank")
    async def rerank(http: HttpRequest):
        body = await http.json()
        documents = listed(body["documents"])
        scores = [await figure(body, body["query"] + text) for text in documents]
        order = sorted(range(len(scores)), key=lambda i: -scores[i])
        results = [
            {"index": i, "document": {"text": documents[i]}, "relevance_score": scores[i]}
            for i in order
        ]
        return reply(body, results=results)

    @app.post("/classify")
    async def classify(http: HttpRequest):
        body = await http.json()
        probs = [await figure(body, text) for text in listed(body["input"])]
        data = [{"index": i, "label": "a", "probs": [p], "num_classes": 1} for i, p in enumerate(probs)]
        return reply(body, object="list", data=data)

    @app.post("/pooling")
    async def pooling(http: HttpRequest):
        body = await http.json()
        vectors = [[await figure(body, text)] for text in listed(body["input"])]
        data = [{"index": i, "object": "pooling", "data": each} for i, each in enumerate(vectors)]
        return reply(body, object="list", data=data)


def add_responses_route(app: FastAPI, engine: FakeVllm) -> None:
    def response(body: dict, rid: str, text: str, status: str) -> dict:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        message = {"type": "message", "role": "assistant", "content": content}
        return {"id": rid, "object": "response", "model": body.get("model") or BASE, "status": status,
                "output": [message] if text else []}

    @app.post("/v1/responses")
    async def responses(http: HttpRequest):
        body = await http.json()
        rid = f"resp_{uuid.uuid4().hex[:16]}"
        params = {"max_tokens": body.get("max_output_tokens", 16)}
        request = (await engine.begin(body.get("model"), prompt_ids(body["input"]), params, rid))[0]
        if not body.get("stream"):
            await engine.drain([request])
            return response(body, rid, text_of(request.tokens), "completed")

        def event(kind: str, **fields) -> str:
            return f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n"

        async def stream():
            # These two come from the server, before its engine has seen the request (responses/serving.py).
            begun = response(body, rid, "", "in_progress")
            yield event("response.created", response=begun)
            yield event("response.in_progress", response=begun)
            sent = 0
            async for _ in engine.scheduler.run(request):
                yield event("response.output_text.delta", delta=text_of(request.tokens[sent:]))
                sent = len(request.tokens)
            yield event("response.completed", response=response(body, rid, text_of(request.tokens), "completed"))

        return StreamingResponse(stream(), media_type="text/event-stream")


def vllm_config(engine: FakeVllm) -> dict:
    args = engine.args
    lora = {
        "max_lora_rank": args.max_lora_rank,
        "max_loras": args.max_loras,
        "max_cpu_loras": args.max_cpu_loras,
        "lora_dtype": "torch.float32",
    }
    return {
        # As the real one dumps it: what has no form in JSON becomes what Python prints of it.
        "model_config": {
            "model": args.model,
            "served_model_name": BASE,
            "revision": None,
            "dtype": "torch.float32",
            "logprobs_mode": "raw_logprobs",
            "hf_config": f"LlamaConfig {json.dumps(engine.model_config, indent=2)}\n",
        },
        "lora_config": lora if args.enable_lora else None,
        "device_config": {"device": args.device},
        "parallel_config": {
            "tensor_parallel_size": 1,
            "data_parallel_size": args.data_parallel_size,
            "_api_process_count": args.api_server_count,
            "nnodes": 1 + len(engine.switches.nodes.split()),
        },
    }


def add_dev_routes(app: FastAPI, engine: FakeVllm) -> None:
    @app.post("/pause")
    async def pause(mode: str = "abort", clear_cache: bool = True):
        if mode not in PAUSE_MODES:
            text = f"1 validation error:\n  Input should be 'abort', 'wait' or 'keep', not {mode!r}"
            raise Refused(400, "Bad Request", text, "query.mode")
        await engine.pause(mode, clear_cache)
        return {"status": "paused"}

    @app.post("/resume")
    async def resume():
        if engine.switches.refuses_resume():
            raise Refused(503, "ServiceUnavailable", "not now")
        await engine.resume()
        return {"status": "resumed"}

    @app.get("/is_sleeping")
    async def is_sleeping():
        return {"is_sleeping": engine.paused}  # also of one that is only paused

    @app.get("/get_world_size")
    async def get_world_size():
        return {"world_size": 1}

    @app.get("/is_paused")
    async def is_paused():
        return {"is_paused": engine.paused}

    @app.post("/abort_requests")
    async def abort(http: HttpRequest):
        wanted = (await http.json()).get("request_ids")
        # By the ids that the routes gave; all samples of one. No list, and an empty one, mean all.
        await engine.scheduler.abort(lambda r: not wanted or r.id.rpartition("-")[0] in wanted)
        return {"status": "aborted", "aborted": len(wanted or engine.scheduler.requests)}

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache():
        return {"success": not engine.scheduler.requests}

    @app.get("/server_info")
    async def server_info(config_format: str = "text"):
        config = vllm_config(engine)
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

        cards = [card(BASE, engine.args.model, None, 1024)]
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
            "# TYPE vllm:generation_tokens_total counter\n"
            f"vllm:generation_tokens_total{labels} {float(engine.scheduler.tokens)}\n"
        )
        for state, is_it in (("awake", engine.awake), ("weights_offloaded", not engine.awake)):
            text += f'vllm:engine_sleep_state{{engine="0",model_name="{BASE}",sleep_state="{state}"}} {float(is_it)}\n'
        if engine.args.enable_lora:  # declared from the start; a series comes with the first request
            text += "# TYPE vllm:lora_requests_info gauge\n"
        if engine.args.enable_lora and engine.has_begun:
            names = ",".join(sorted({r.name for r in engine.scheduler.requests if r.name}))
            text += (
                f'vllm:lora_requests_info{{max_lora="{engine.args.max_loras}",running_lora_adapters="{names}",'
                f'waiting_lora_adapters="{names}"}} {time.time()}\n'
            )
        return PlainTextResponse(text)


def ask_for_key(app: FastAPI, key: str) -> None:
    """As AuthenticationMiddleware of vllm/entrypoints/serve/middleware/authenticate.py: these paths and no other."""
    guarded = ("/v1", "/v2", "/inference", "/cohere")

    @app.middleware("http")
    async def check(http: HttpRequest, call_next):
        if http.url.path.startswith(guarded) and http.headers.get("authorization") != f"Bearer {key}":
            return JSONResponse({"error": "Unauthorized"}, 401)
        return await call_next(http)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument(
        "--model", default=str(DEFAULT_MODEL), help="the base model's directory, whose config.json is read at start"
    )
    parser.add_argument("--enable-lora", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--max-lora-rank", type=int, default=16)
    parser.add_argument("--max-loras", type=int, default=4)
    parser.add_argument("--max-cpu-loras", type=int, default=8)
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument("--data-parallel-size", type=int, default=1)
    parser.add_argument("--api-server-count", type=int, default=1)
    parser.add_argument("--api-key", help="what calls of /v1 and the like must show")
    parser.add_argument("--areal", action="store_true", help="AReaL's server around it")
    parser.add_argument("--device", default="cuda", help="what it says it runs on")
    parser.add_argument(
        "--startup-delay", type=float, default=0.0, help="seconds before the port opens"
    )
    parser.add_argument(
        "--fake", type=json.loads, default={}, help="switches, as JSON (engine_core.Switches)"
    )
    return parser.parse_args()


def is_on(variable: str) -> bool:
    return os.environ.get(variable, "1").lower() in ("1", "true")


def main() -> None:
    args = parse_args()
    switches = Switches()
    switches.update(args.fake)
    app, engine = FastAPI(), FakeVllm(args, switches)
    app.add_exception_handler(Refused, lambda _, error: error.reply())
    if args.api_key:
        ask_for_key(app, args.api_key)
    adders = [add_generate_routes, add_other_model_routes, add_pooling_routes, add_responses_route, add_info_routes]
    # The real one has these routes only where its environment says so; unset means on here.
    if is_on("VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        adders.append(add_lora_routes)
    if is_on("VLLM_SERVER_DEV_MODE"):
        adders += [add_dev_routes, add_vllm_memory_routes]
    if args.areal:
        adders.append(add_areal_routes)
    for add in adders:
        add(app, engine)

    def state() -> dict:
        return {
            "running": engine.scheduler.running,
            "waiting": engine.scheduler.waiting,
            "paused": engine.paused,
            "pauses": engine.pauses,
            "flushes": engine.flushes,
            "cached": [a.name for a in engine.cache.values()],
            "listed": engine.listing(),
        } | engine.memory.state()

    add_control_routes(app, switches, state)
    serve(app, switches, args.port, args.startup_delay)


if __name__ == "__main__":
    main()
