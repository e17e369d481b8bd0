#!/usr/bin/env python3
"""Writes corpus/: what strangers, the orchestrator, the store and the engine say to a proxy, and what a follower is ordered, as commands
(see README.md)."""

import json
import pathlib

FOLDER = pathlib.Path(__file__).parent / "corpus"
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


def at(name, journal="j1"):
    return f"$root/versions/{journal}/${name}"


def place(name, run=1, digest="", journal="j1", **changed):
    """What a leader asks for."""
    fields = {"engine_name": f"${name}", "path": at(name, journal), "version": VERSION | {"run": run}, "digest": f"$digest_of_{digest or name}",
              "traits": TRAITS, "render": "RENDER_PLAIN"}
    return fields | changed


def order(revision, paths, place=None, how="C0", **changed):
    """A leader's order."""
    fields = {"member": "engine-1", "journal": "j1", "life": "a", "revision": revision, "paths": paths}
    return call("Follow", how, **fields | ({"place": place} if place else {}) | changed)


ONE, TWO = place("one"), place("two", run=2)
FOLDED = place("folded", digest="one", render="RENDER_RSLORA_FOLDED")
FIRST = order(1, [at("one")], ONE)
SECOND = order(2, [at("one"), at("two")], TWO)
FOLLOWER_SCRIPTS = {
    "placed": [FIRST, SECOND, order(3, [at("two")]), order(4, [at("one")], ONE)],
    "folded": [order(1, [at("folded")], FOLDED), order(2, [at("folded"), at("one")], ONE), "K0", order(3, [at("folded")], FOLDED)],
    "late": [FIRST, SECOND, order(1, []), order(9, [at("two")]), order(3, [at("one")], ONE), order(1, [], life="b")],
    "restarted": [FIRST, "K0", order(2, [at("one")], ONE), "K1", order(3, [at("one")], ONE), order(4, [at("one")], ONE), "K2",
                  order(5, [at("one")], ONE)],
    "removed": [FIRST, "R0", order(2, [at("one")], ONE), SECOND],
    "another_journal": [FIRST, order(1, [at("one"), at("two", "j2")], place("two", run=2, journal="j2"), journal="j2"),
                        order(2, [at("two", "j2")], journal="j2"), order(3, [at("one")], ONE)],
    "of_another": [order(1, [at("one")], ONE, member="engine-2"), FIRST, order(2, [], member="")],
    "not_listed": [order(1, [], ONE), order(2, [at("two")], ONE)],
    "where_it_is_not": [order(1, [at("one")], ONE | {"path": "/elsewhere/$one"}), order(2, [at("one")], ONE | {"path": at("one", "j2")})],
    "out_of_the_root": [order(1, [f"{at('one')}/../../../.."], ONE | {"engine_name": "../../..", "path": "$root/versions/j1/../../.."}),
                        order(2, ["/"], journal=".."), order(3, ["$root/versions/.."], journal="a/b")],
    "wrong_digest": [order(1, [at("one")], place("one", digest="two")), FIRST, order(2, [at("one")], place("one", digest="two"))],
    "of_two_leaders": [FIRST, order(7, [at("two")], TWO, how="A0", life="b"), order(2, [at("one")], ONE, how="A0"),
                       order(8, [at("one"), at("two")], ONE, how="A0", life="b"), "W0", FIRST],
    "given_up": [order(1, [at("one")], ONE, how="A0"), order(2, [], how="A0"), order(3, [at("one")], ONE), order(4, [], how="A0"), "W0"],
    "cancelled": ["O0Follow", f"M0{order(1, [at('one')], ONE)[len('C0Follow '):]}", "X0", "O1Follow", "M1garbage", "H1", "o4Follow", FIRST],
    "store_lies": [line("N0", MANIFEST | {"version": MANIFEST["version"] | {"digest": "$digest_of_one"}}), FIRST,
                   line("N0", {"version": {"image_bytes": "1099511627776"}}), order(2, [at("one")], ONE), order(3, [at("one")], ONE)],
    "many_paths": [FIRST, order(2, [at("one"), *(f"/{number}" for number in range(100))]), order(3, [at("one")] * 3)],
}


def main():
    for name, scripts in (("proxy", SCRIPTS), ("follower", FOLLOWER_SCRIPTS)):
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
        for script, commands in scripts.items():
            (FOLDER / name / script).write_bytes("\x1e".join(commands).encode())


if __name__ == "__main__":
    main()
