#!/usr/bin/env python3
"""Writes corpus/whole_door: what real clients and engines send, as commands (see README.md); found inputs are added by hand."""

import json
import pathlib
import re

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "corpus" / "whole_door"
ROUTES = HERE.parents[2] / "services" / "engine_proxy" / "door" / "routes.cc"
SGLANG, VLLM, HELD, CATCHING_UP, NO_ENGINE, LATEST = "t0", "t1", "t2", "t6", "t8", "t:"
# in_flight=abort and resume_on_new, with the row on 11 and on 12.
ABORT_11, ABORT_12, RESUME_11, RESUME_12, VLLM_ABORT_11, VLLM_ABORT_12 = "t`", "t<", "tl", "tH", "ta", "t="
WAIT = "w0"


def post(path, body, client=0, fields=""):
    """A whole POST of client `client`."""
    text = body if isinstance(body, str) else json.dumps(body, separators=(",", ":")).replace("\\u0001", "\x01")
    return f"R{client}POST {path} HTTP/1.1\r\nHost: door\r\nContent-Type: application/json{fields}\r\n\r\n{text}"


def get(path, client=0, method="GET"):
    """A whole request without a body."""
    return f"R{client}{method} {path} HTTP/1.1\r\nHost: door"


def raw(text, client=0):
    """Bytes as they are."""
    return f"r{client}{text}"


GENERATE = {"text": "once", "sampling_params": {"max_new_tokens": 4, "n": 1}, "lora_path": "policy", "rid": "mine", "stream": False}
CHAT = {"model": "policy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "stream": False, "n": 1}
COMPLETION = {"model": "policy@12", "prompt": [1, 2, 3], "max_tokens": 4, "n": 1}
TOKENS = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 9}, "lora_path": "policy", "stream": False}
ABORTED = '{"text":"a","output_ids":[7],"meta_info":{"id":"\x02","finish_reason":{"type":"abort"},"prompt_tokens":2,"completion_tokens":1,"output_token_logprobs":[[-1,7,null]]}}'
RUNNING = ABORTED.replace('{"type":"abort"}', "null")
BODY = "\r\nX-Lorry-Body: 1"
CHUNKED = "POST /generate HTTP/1.1\r\nHost: door\r\nTransfer-Encoding: chunked\r\n\r\n"
TEXT = '{"text":"x","lora_path":"policy"}'
ONE_CHOICE = '{"id":"\x02","choices":[{"index":0,"text":"x"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
EVENTS = 'data: {"id":"\x02","text":"a"}\n\ndata: {"id":"\x02","text":"b"}\n\ndata: [DONE]\n\n'
HEAD = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

SCRIPTS = {
    "generate": [SGLANG, post("/generate", GENERATE), WAIT, post("/generate", {**GENERATE, "lora_path": "policy@eval"})],
    "generate_batch": [
        SGLANG,
        post("/generate", {"text": ["a", "b"], "lora_path": ["policy", "math"], "rid": ["r1", "r2"]}),
        post("/generate", {"input_ids": [[1, 2], [3]], "lora_path": ["policy"], "rid": "one"}, 1),
    ],
    "generate_stream": [SGLANG, f"S0{EVENTS}", post("/generate", {**GENERATE, "stream": True}), WAIT],
    "generate_n": [SGLANG, post("/generate", {"text": "\x01j", "sampling_params": {"n": 64}, "lora_path": "policy"})],
    "generate_n_of_a_long_text": [SGLANG, post("/generate", {"text": "\x01t", "sampling_params": {"n": 64}, "lora_path": "policy"}), WAIT],
    "completion": [SGLANG, f"J0{ONE_CHOICE}", post("/v1/completions", COMPLETION), VLLM, post("/v1/completions", COMPLETION, 1)],
    "completion_n": [SGLANG, f"J0{ONE_CHOICE}", post("/v1/completions", {**COMPLETION, "n": 2})],
    "chat": [VLLM, post("/v1/chat/completions", CHAT), SGLANG, post("/v1/chat/completions", {**CHAT, "n": 3}, 1)],
    "chat_stream": [VLLM, f"S0{EVENTS}", post("/v1/chat/completions", {**CHAT, "stream": True})],
    "chunked": [raw(f"{CHUNKED}{len(TEXT):x}\r\n{TEXT}\r\n0\r\n\r\n"), WAIT, post("/generate", GENERATE)],
    "pipelined": [post("/generate", GENERATE), post("/v1/chat/completions", CHAT), get("/health"), get("/v1/models")],
    "continue": [post("/generate", GENERATE, fields="\r\nExpect: 100-continue"), WAIT],
    "min_version": [post("/generate", GENERATE, fields="\r\nX-Lorry-Min-Version: 13"), WAIT, "t0"],
    "held": [HELD, post("/generate", GENERATE), post("/v1/chat/completions", CHAT, 1), WAIT, "c1", SGLANG, WAIT],
    "catching_up": [CATCHING_UP, post("/generate", GENERATE), NO_ENGINE, post("/generate", GENERATE, 1), get("/health", 2)],
    "latest": [LATEST, post("/generate", {"text": "x"}), WAIT],
    "abort": [
        SGLANG,
        f"S8{EVENTS}",
        post("/generate", {**GENERATE, "stream": True}),
        WAIT,
        post("/abort_request", {"rid": "mine"}, 1),
        WAIT,
    ],
    "flip_aborts": [ABORT_11, f"J8{ABORTED}", post("/generate", {**GENERATE, "rid": "x"}), WAIT, ABORT_12, WAIT],
    "flip_aborts_stream": [ABORT_11, f"S8data: {RUNNING}\n\ndata: {ABORTED}\n\n", post("/generate", {**GENERATE, "stream": True}), WAIT, ABORT_12, WAIT],
    "flip_aborts_batch": [
        ABORT_11,
        f"J8[{ABORTED},{ABORTED}]",
        post("/generate", {"text": ["a", "b"], "lora_path": ["policy", "policy@11"]}, fields=BODY),
        WAIT,
        ABORT_12,
        WAIT,
    ],
    "flip_aborts_n": [ABORT_11, f"J8{ABORTED}", post("/generate", {"text": "a", "sampling_params": {"n": 3}, "lora_path": "policy"}), WAIT, ABORT_12],
    "flip_aborts_vllm": [
        VLLM_ABORT_11,
        f"J8{ONE_CHOICE}",
        post("/v1/completions", {"model": "policy", "prompt": ["a", "b"], "request_id": "mine", "n": 2}, fields=BODY),
        WAIT,
        VLLM_ABORT_12,
        WAIT,
    ],
    "resume": [RESUME_11, f"J8{ABORTED}", post("/generate", {**TOKENS, "rid": "mine"}, fields=BODY), WAIT, RESUME_12, WAIT],
    "resume_twice": [RESUME_11, f"J4{ABORTED}", "J4{}", f"J4{ABORTED}", "J4{}", post("/generate", TOKENS), RESUME_12, WAIT, RESUME_11, WAIT],
    "resume_stream": [
        RESUME_11,
        f"S8data: {RUNNING}\n\ndata: {ABORTED}\n\ndata: [DONE]\n\n",
        post("/generate", {**TOKENS, "stream": True}),
        WAIT,
        f"S0data: {RUNNING}\n\ndata: [DONE]\n\n",
        RESUME_12,
        WAIT,
    ],
    "resume_refused": [RESUME_11, f"J8{ABORTED}", post("/generate", TOKENS), WAIT, "J0{}", 'J0{"error":1}', RESUME_12, WAIT],
    "resume_held": [RESUME_11, f"J8{ABORTED}", post("/generate", TOKENS), WAIT, RESUME_12, HELD, WAIT],
    "body_notes": [SGLANG, post("/generate", GENERATE, fields=BODY), f"S0{EVENTS}", post("/v1/completions", {**COMPLETION, "stream": True}, 1, BODY)],
    "leaves": [f"S8{EVENTS}", post("/generate", {**GENERATE, "stream": True}), WAIT, "c0", VLLM, post("/generate", GENERATE, 1), "h1"],
    "reads_nothing": [f"E0{HEAD}\r\n\x01s", "n4", post("/generate", GENERATE), WAIT],
    "drain": [f"S8{EVENTS}", post("/generate", {**GENERATE, "stream": True}), WAIT, "d5", post("/generate", GENERATE, 1)],
    "explain": [post("/generate", GENERATE), WAIT, "q8"],
    "engine_short": [f"E1{HEAD}Content-Length: 100\r\n\r\n{{}}", post("/generate", GENERATE), WAIT],
    "engine_bad_chunk": [f"E1{HEAD}Transfer-Encoding: chunked\r\n\r\nzz\r\n{{}}", post("/generate", GENERATE), WAIT],
    "engine_resets": [f"E2{HEAD}Content-Length: 9\r\n\r\n{{", post("/generate", GENERATE), WAIT],
    "engine_to_end": [f"E1{HEAD}\r\n{{}}", post("/generate", GENERATE), WAIT],
    "engine_trickles": [f"E4{HEAD}Content-Length: 2\r\n\r\n{{}}", post("/generate", GENERATE), WAIT],
    "engine_early": ["E@HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n", post("/generate", {**GENERATE, "text": "\x01s"}), WAIT],
    "engine_huge_head": [f"E0{HEAD}X: \x01q\r\nContent-Length: 2\r\n\r\n{{}}", post("/generate", GENERATE), WAIT],
    "engine_continues": [f"E0HTTP/1.1 100 Continue\r\n\r\n{HEAD}Content-Length: 2\r\n\r\n{{}}", post("/generate", GENERATE)],
    "engine_closes": ["E1", post("/generate", GENERATE), WAIT],
    "engine_models": ['J0{"data":[{"id":"base","parent":null},{"id":"policy-v12-0123456789ab"}]}', get("/v1/models")],
    "engine_info": ['J0{"api_key":"secret","model_path":"m","server_args":{"admin_api_key":"x"}}', get("/server_info")],
    "smuggled": [raw("POST /generate HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")],
    "cut": [raw("POST /generate HTTP/1.1\r\nContent-Length: 30\r\n\r\n{"), WAIT, "x0"],
}


# A digit of a reply: how it ends.
BREAKS, RESETS, TRICKLES, HANGS = 1, 2, 4, 8
RESUME_HELD = "tJ"
LENGTH = ABORTED.replace('{"type":"abort"}', '{"type":"length"}')
NO_TOKEN = ABORTED.replace("[7]", "[]").replace('"completion_tokens":1', '"completion_tokens":0')


def events(how, *said, done="data: [DONE]\n\n"):
    """The engine's next reply, as a stream."""
    return f"S{how}" + "".join(f"data: {event}\n\n" for event in said) + done


def parts():
    """Requests whose row flips, and what an engine and a client may do in each part. What hangs ends with the input, when the row is open."""
    begun = [RESUME_11, events(HANGS, RUNNING, ABORTED), post("/generate", {**TOKENS, "stream": True, "rid": "mine"}), WAIT, "J0{}"]
    whole = [RESUME_11, f"J8{ABORTED}", post("/generate", {**TOKENS, "rid": "mine"}), WAIT, "J0{}"]
    flips = [RESUME_12, WAIT]
    asks = begun[2]
    aborts = post("/abort_request", {"rid": "mine"}, 1)
    return {
        "stream_breaks": [RESUME_11, events(HANGS + BREAKS, RUNNING, done=""), asks, WAIT, *flips],
        "stream_resets": [RESUME_11, events(HANGS + RESETS, RUNNING), asks, WAIT, *flips],
        "stream_trickles": [RESUME_11, events(TRICKLES, RUNNING, ABORTED), asks, *flips],
        "next_breaks_at_once": [*begun, "E1", *flips],
        "next_breaks_in_its_head": [*begun, "E1HTTP/1.1 200", *flips],
        "next_breaks_in_its_event": [*begun, events(BREAKS, RUNNING, done="")[:-9], *flips],
        "next_resets": [*begun, events(RESETS, RUNNING, LENGTH), *flips],
        "next_is_whole": [*begun, f"J0{LENGTH}", *flips],
        "next_is_refused": [*begun, "E0HTTP/1.1 400 X\r\nContent-Length: 2\r\n\r\n{}", *flips],
        "next_is_nonsense": [*begun, "S0data: {}\n\n: ping\n\ndata: [1]\n\ndata: x\n\n", *flips],
        "next_has_no_token": [*begun, events(0, NO_TOKEN), *flips],
        "client_leaves": [*begun, events(HANGS, RUNNING), *flips, "c0", WAIT],
        "client_leaves_while_held": [*begun, RESUME_HELD, WAIT, "x0", WAIT, RESUME_12],
        "client_reads_nothing": ["n4", *begun, events(0, LENGTH), *flips],
        "client_aborts": [*begun, events(HANGS, RUNNING, ABORTED), *flips, aborts, WAIT],
        "client_aborts_first": [*begun, aborts, WAIT, *flips],
        "drained": [*begun, events(HANGS, RUNNING), *flips, "d5", WAIT],
        "whole_breaks": [*whole, "E1", *flips],
        "whole_is_a_stream": [*whole, events(0, LENGTH), *flips],
        "whole_client_leaves": [*whole, f"J8{LENGTH}", *flips, "h0", WAIT],
    }


def routes(kind):
    """Every row of the door's table for one kind of engine: methods and path."""
    table = re.search(rf"kR?{kind}\[\] = {{(.*?)\n}};", ROUTES.read_text(), re.DOTALL)
    return re.findall(r'{"([A-Z,]+)", "([^"]+)"', table.group(1))


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for kind, table in (("Sglang", SGLANG), ("Vllm", VLLM)):
        plain = [table]
        for number, (methods, path) in enumerate(routes(kind)):
            for method in methods.split(","):
                plain.append(post(path, CHAT, number % 4) if method == "POST" else get(path, number % 4, method))
        SCRIPTS[f"routes_{kind.lower()}"] = plain
    SCRIPTS.update({f"part_{name}": commands for name, commands in parts().items()})
    for name, commands in SCRIPTS.items():
        (FOLDER / name).write_bytes("\x1e".join(commands).encode())


if __name__ == "__main__":
    main()
