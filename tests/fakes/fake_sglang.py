"""A strict fake of SGLang 0.5.23's HTTP server: registry, reference counts, pauses and error bodies as seen on the real
one (tests/contract/engines runs the same cases against both). It computes nothing; see engine_core.

usage: fake_sglang.py --port 0 [--model DIR] [flags of SGLang] [--fake '{"switch": value}']
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
import hashlib
import json
import time
import uuid

from engine_core import (
    DEFAULT_MODEL,
    PROJECTIONS,
    Adapter,
    Request,
    Switches,
    add_control_routes,
    die,
    logprob_at,
    prompt_ids,
    serve,
    text_of,
)
from engine_memory import add_sglang_memory_routes
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import (
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from sglang_state import FakeSglang, Refused

VERSION = "0.5.23"
PAUSE_MODES = ("abort", "retract", "in_place")


def openai_error(status: int, text: str, kind: str = "BadRequestError") -> JSONResponse:
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
    return openai_error(400, text, "Bad Request")


def add_lora_routes(app: FastAPI, engine: FakeSglang) -> None:
    disabled = "LoRA is not enabled. Please set `--enable-lora` to enable LoRA."

    def off() -> JSONResponse | None:
        if not engine.args.enable_lora:
            return lora_reply(engine.answer(False, disabled, None))
        if engine.args.dp_size != 1:
            raise AssertionError(
                "data-parallel replicas are not supported for dynamic lora loading"
            )
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
            die(engine.switches, "payload of load_lora_adapter_from_tensors is no base64")
        if payload[:1] != b"\x80" or body.get("expected_checksums"):
            die(
                engine.switches,
                "payload of load_lora_adapter_from_tensors is no pickle, or differs from its checksums",
            )
        digest = hashlib.sha256(payload).hexdigest()
        rank = body["config_dict"]["r"]
        adapter = Adapter(body["lora_name"], "__tensor__", digest, rank, shapes_fit=True)
        return lora_reply(await engine.load(adapter.name, adapter.path, False, adapter))


def add_generate_route(app: FastAPI, engine: FakeSglang) -> None:
    async def answer(body: dict, rid: str, name: str | None, prompt) -> list[dict]:
        params, logprobs = body.get("sampling_params") or {}, body.get("return_logprob", False)
        adapter, requests = await engine.begin(rid, name, prompt_ids(prompt), params)
        await engine.finish_all(adapter, requests)
        start = body.get("logprob_start_len")
        return [engine.chunk(r, logprobs, logprob_start=start) for r in requests]

    @app.api_route("/generate", methods=["POST", "PUT"])
    async def generate(http: HttpRequest):
        body = await http.json()
        prompts = body["input_ids"] if "input_ids" in body else body["text"]
        batch = isinstance(prompts, list) and isinstance(prompts[0], (str, list))
        rids, names = body.get("rid"), body.get("lora_path")
        if not batch:
            prompts, rids, names = [prompts], [rids or uuid.uuid4().hex], [names]
        else:  # io_struct.py, _normalize_rid and _normalize_lora_paths
            if not isinstance(rids, list):
                rids = [f"{rids}_{i}" if rids else uuid.uuid4().hex for i in range(len(prompts))]
            if not isinstance(names, list):
                names = [names] * len(prompts)
            if len(rids) != len(prompts) or len(names) != len(prompts):
                return JSONResponse({"error": {"message": "lengths differ from the batch"}}, 400)
        taken = [rid for rid in rids if rid in engine.live_ids]
        if taken:
            return JSONResponse(
                {"error": {"message": f"Duplicate request ID detected: {taken[0]}"}}, 400
            )
        engine.live_ids.update(rids)
        try:
            if body.get("stream") and not batch:
                params, logprobs = body.get("sampling_params") or {}, body.get("return_logprob")
                adapter, requests = await engine.begin(
                    rids[0], names[0], prompt_ids(prompts[0]), params
                )
                return StreamingResponse(
                    engine.stream(adapter, requests[0], render(bool(logprobs))),
                    media_type="text/event-stream",
                )
            each = [answer(body, r, n, p) for r, n, p in zip(rids, names, prompts)]
            replies = [chunk for chunks in await asyncio.gather(*each) for chunk in chunks]
        except Refused as error:
            return JSONResponse({"error": {"message": str(error)}}, 400)
        finally:
            engine.live_ids.difference_update(rids)
        return replies if batch or len(replies) > 1 else replies[0]

    def render(logprobs: bool):
        # Streams repeat everything from the start unless --incremental-streaming-output is given.
        incremental = engine.args.incremental_streaming_output
        return lambda request, sent: engine.chunk(request, logprobs, sent if incremental else 0)


def add_other_model_routes(app: FastAPI, engine: FakeSglang) -> None:
    """Routes that generate nothing, or in another API's words."""

    async def vector(name: str | None, prompt) -> list[float]:
        adapter, requests = await engine.begin(uuid.uuid4().hex, name, prompt_ids(prompt), {})
        await engine.release(adapter, requests)
        return [logprob_at(requests[0].digest, requests[0].ids, i) for i in range(4)]

    @app.post("/v1/embeddings")
    async def embeddings(http: HttpRequest):
        body = await http.json()
        name = str(body.get("model", "")).partition(":")[2] or body.get("lora_path")
        inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
        if isinstance(inputs[0], int):
            inputs = [inputs]
        try:
            vectors = [await vector(name, text) for text in inputs]
        except Refused as error:
            return openai_error(400, str(error))
        data = [
            {"object": "embedding", "embedding": v, "index": i} for i, v in enumerate(vectors)
        ]
        return {"data": data, "model": body.get("model"), "object": "list", "usage": {}}

    @app.post("/v1/score")
    async def score(http: HttpRequest):
        # ScoringRequest has no lora_path: the base model answers, whatever `model` says.
        body = await http.json()
        scores = [await vector(None, body["query"] + item) for item in body["items"]]
        return {"scores": scores, "model": body.get("model", "default"), "object": "scoring"}

    @app.api_route("/encode", methods=["POST", "PUT"])
    @app.api_route("/classify", methods=["POST", "PUT"])
    async def encode(http: HttpRequest):
        # EmbeddingReqInput: one text or a list, each with its own id and adapter.
        body = await http.json()
        batch = isinstance(body["text"], list)
        texts = body["text"] if batch else [body["text"]]
        ids = body["rid"] if batch else [body["rid"]]
        name = body.get("lora_path")
        names = name if isinstance(name, list) else [name] * len(texts)
        try:
            vectors = [await vector(n, text) for n, text in zip(names, texts, strict=True)]
        except Refused as error:
            return JSONResponse({"error": {"message": str(error)}}, 400)
        replies = [{"embedding": v, "meta_info": {"id": i}} for v, i in zip(vectors, ids, strict=True)]
        return replies if batch else replies[0]

    @app.post("/v1/messages")
    async def messages(http: HttpRequest):
        # anthropic/serving.py makes a chat request of it, with `model` and no lora_path.
        body = await http.json()
        name = str(body.get("model", "")).partition(":")[2] or None
        prompt = "\n".join(str(m["content"]) for m in body["messages"])
        try:
            adapter, requests = await engine.begin(
                uuid.uuid4().hex, name, prompt_ids(prompt), body
            )
        except Refused as error:
            kind = {"type": "invalid_request_error", "message": str(error)}
            return JSONResponse({"type": "error", "error": kind}, 400)
        await engine.finish_all(adapter, requests)
        return {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": text_of(requests[0].tokens)}],
            "model": body.get("model"),
            "stop_reason": "max_tokens",
        }


def add_openai_routes(app: FastAPI, engine: FakeSglang) -> None:
    async def complete(http: HttpRequest, chat: bool):
        body = await http.json()
        base, _, suffix = str(body.get("model", "")).partition(":")
        name = suffix or body.get("lora_path")
        if name is None and base not in ("", "base") and not engine.switches.base_for_unknown:
            return openai_error(404, f"The model {base} does not exist.", "NotFoundError")
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
            return openai_error(
                400, f"Input should be 'abort', 'retract' or 'in_place', not {mode!r}"
            )
        await engine.pause(mode)
        return done("paused")

    @app.post("/continue_generation")
    async def resume(http: HttpRequest):
        await http.json()
        if engine.switches.refuses_resume():
            return openai_error(503, "not now")
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
    async def flush(timeout: float = 0):
        ends_at = time.monotonic() + timeout
        while engine.scheduler.requests and time.monotonic() < ends_at:
            await asyncio.sleep(0.05)
        if engine.scheduler.requests:
            return PlainTextResponse("Flush cache failed.\n", 400)
        engine.flushes += 1
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
        info = {
            k: v
            for k, v in vars(args).items()
            if k not in ("port", "fake", "startup_delay", "model")
        }
        return info | {
            "model_path": args.model,
            "served_model_name": "base",
            "tp_size": 1,
            "nnodes": 1 + len(engine.switches.nodes.split()),
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
        running, waiting = engine.counts.shown()
        load = {
            "timestamp": engine.counts.published_at,
            "dp_rank": 0,
            "num_running_reqs": running,
            "num_waiting_reqs": waiting,
        }
        return {"timestamp": "", "version": VERSION, "loads": [load]}


def ask_for_keys(app: FastAPI, api_key: str | None, admin_key: str | None) -> None:
    """As decide_request_auth of sglang/srt/utils/auth.py: the admin key opens the routes that are marked ADMIN_OPTIONAL, and no other."""
    marked = ("/load_lora_adapter", "/unload_lora_adapter", "/pause_generation", "/continue_generation", "/abort_request", "/flush_cache",
              "/release_memory_occupation", "/resume_memory_occupation", "/update_weights", "/init_weights", "/update_weight_version")

    @app.middleware("http")
    async def check(http: HttpRequest, call_next):
        path = http.url.path
        wanted = admin_key or api_key if path.startswith(marked) else api_key
        is_open = path.startswith(("/health", "/metrics", "/_fake"))
        if wanted and not is_open and http.headers.get("authorization") != f"Bearer {wanted}":
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
    parser.add_argument("--max-loras-per-batch", type=int, default=4)
    parser.add_argument("--max-loaded-loras", type=int)
    parser.add_argument("--lora-target-modules", nargs="+", default=list(PROJECTIONS))
    parser.add_argument("--max-running-requests", type=int, default=8)
    parser.add_argument("--tokenizer-worker-num", type=int, default=1)
    parser.add_argument("--dp-size", type=int, default=1)
    parser.add_argument("--attn-dp-size", type=int, default=1)
    parser.add_argument("--incremental-streaming-output", action="store_true")
    parser.add_argument("--api-key")
    parser.add_argument("--admin-api-key")
    parser.add_argument(
        "--startup-delay", type=float, default=0.0, help="seconds before the port opens"
    )
    parser.add_argument(
        "--fake", type=json.loads, default={}, help="switches, as JSON (engine_core.Switches)"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    switches = Switches()
    switches.update(args.fake)
    app, engine = FastAPI(), FakeSglang(args, switches)
    if args.api_key or args.admin_api_key:
        ask_for_keys(app, args.api_key, args.admin_api_key)
    for add in (
        add_lora_routes,
        add_generate_route,
        add_other_model_routes,
        add_openai_routes,
        add_pause_routes,
        add_sglang_memory_routes,
        add_info_routes,
    ):
        add(app, engine)

    def state() -> dict:
        return {
            "running": engine.scheduler.running,
            "waiting": engine.scheduler.waiting,
            "held": engine.held,
            "paused": engine.paused,
            "pauses": engine.pauses,
            "flushes": engine.flushes,
            "references": {a.name: a.references for a in engine.ever_loaded.values()},
            "listed": engine.listing(),
        } | engine.memory.state()

    add_control_routes(app, switches, state)
    serve(app, switches, args.port, args.startup_delay)


if __name__ == "__main__":
    main()
