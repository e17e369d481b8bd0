#!/usr/bin/env python3
"""Writes corpus/proxy: what strangers, the orchestrator, the store and the engine say to a proxy, as commands (see README.md)."""

import json
import pathlib

FOLDER = pathlib.Path(__file__).parent / "corpus" / "proxy"
VERSION = {"adapter": "policy", "run": 1, "number": 1}
TRAITS = {"rank_max": 8, "modules": ["k_proj", "q_proj", "v_proj"]}
WANTED = {"engine_name": "$name", "version": VERSION, "digest": "$digest", "traits": TRAITS, "must": True, "load": True,
          "probe": "PROBE_MODE_TOKEN", "render": "RENDER_PLAIN"}
OPEN = {"adapter": "policy", "mode": "ROW_MODE_OPEN", "epoch": 1, "target": "$name"}
RULES = {"adapter": "policy", "current_run": 1, "max_staleness": 1, "hold_limit_ms": 20, "stale": "STALE_MODE_REFUSE",
         "no_adapter": "NO_ADAPTER_MODE_REFUSE"}


def line(head, fields):
    """A command with a message."""
    return f"{head}{json.dumps(fields, separators=(',', ':'))}"


def call(method, how="C0", **fields):
    """A call with one message."""
    return line(f"{how}{method} ", fields)


def desired(revision=1, **changed):
    """The orchestrator's document."""
    fields = {"term": {"incarnation": 1, "term": 1}, "revision": revision, "journal_id": "j1", "boot_id": "vllm-1000",
              "rows": [], "wanted": [WANTED], "aliases": [], "rules": [RULES]}
    return line("D0", fields | changed)


ASK = line("Q0", {"model": "policy", "prompt": "x"})
EXPLAIN = call("Explain", request_id="$request")
SERVING = ["s0", desired(1), "s0", "s0", desired(2, rows=[OPEN]), "s0"]
HELD, LOCKED = ({"adapter": "policy", "mode": f"ROW_MODE_{mode}", "epoch": 2, "hold_for_ms": 10} for mode in ("HELD", "LOCKED"))
MANIFEST = {"version": {"version": VERSION, "digest": "$digest", "image_bytes": 4096, "config_json": "{}"}, "leaves": "AAAAAAAAAAAAAAAAAAAAAA==",
            "ticket": "AA==", "addresses": ["grpc://127.0.0.1:1"]}
SCRIPTS = {
    "asked": [call("GetStatus"), EXPLAIN, call("Explain", request_id=""), "O1GetStatus", "X1", "o4Drain"],
    "serving": [*SERVING, ASK, EXPLAIN, call("GetStatus")],
    "drained": [*SERVING, call("Drain", "A0"), call("Drain"), ASK, call("GetStatus"), "W0"],
    "restart": [*SERVING, ASK, "K0", "s0", desired(3, rows=[OPEN]), "s0", ASK],
    "engine_restart": [*SERVING, "B0", "s0", ASK, desired(3, rows=[OPEN], boot_id="vllm-2000"), "s0", ASK],
    "unloaded": [*SERVING, desired(3, wanted=[]), "s0", call("GetStatus")],
    "barrier": [*SERVING, desired(3, rows=[HELD]), "s0", ASK, desired(4, rows=[LOCKED]), "s0", desired(5, rows=[OPEN | {"epoch": 2}]), "s0"],
    "paused": [*SERVING, desired(3, rows=[OPEN], pause={"kind": "PAUSE_KIND_KEEP", "deadline_ms": 20, "flush": True}), "s0", desired(4), "s0"],
    "aliases": [*SERVING, desired(3, rows=[OPEN], aliases=[{"adapter": "policy", "alias": "eval", "target": "$name"}]), "s0",
                line("Q0", {"model": "policy@eval"}), EXPLAIN],
    "another_journal": ["s0", desired(1, journal_id="other"), "s0", desired(1, term={"incarnation": 2, "term": 1}), "s0"],
    "unreadable": ["s0", desired(1, wanted=[WANTED | {"render": "RENDER_UNSPECIFIED"}]), "s0", desired(1), "s0"],
    "twice_the_same": ["s0", desired(1, wanted=[WANTED, WANTED], rows=[OPEN, OPEN]), "s0"],
    "names_of_others": ["s0", desired(1, wanted=[WANTED | {"engine_name": "../../x"}, WANTED | {"engine_name": "policy-v1-000000000000"}]), "s0"],
    "manifests": ["s0", line("N0", MANIFEST), line("N0", MANIFEST | {"leaves": ""}), line("N0", {"version": {"image_bytes": "1099511627776"}}),
                  desired(1), "s0", "s0"],
    "engine_says": ["s0", "E0HTTP/1.1 500 x\r\nContent-Length: 0\r\n\r\n", desired(1), "E0garbage",
                    "E0HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "s0", "s0"],
}


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, commands in SCRIPTS.items():
        (FOLDER / name).write_bytes("\x1e".join(commands).encode())


if __name__ == "__main__":
    main()
