#!/usr/bin/env python3
"""Writes corpus/orchestrator: what members, trainers, operators and the store say, as commands (see ../README.md)."""

import json
import pathlib

FOLDER = pathlib.Path(__file__).parent / "corpus" / "orchestrator"


def line(head, fields):
    """A command with a message."""
    return f"{head}{json.dumps(fields, separators=(',', ':'))}"


def call(method, how="C0", **fields):
    """A call with one message."""
    return line(f"{how}{method} ", fields)


def version(number, run=1):
    """A VersionRef."""
    return {"adapter": "policy", "run": run, "number": number}


DIGEST = "sha256-xxh3:" + "0123456789abcdef" * 4
ADAPTER = line("S0", {"revision": 1, "changes": [{"adapter_set": {"name": "policy", "current_run": 1, "generation": 1}}]})


def stored(number):
    """The store says that a version is there."""
    change = {
        "ref": version(number),
        "digest": DIGEST,
        "image_bytes": 4096,
        "traits": {"rank_max": 8, "modules": ["q_proj"]},
        "revision": number + 1,
    }
    return line("S0", {"revision": number + 1, "changes": [{"version_stored": change}], "synced": True})


def observed(**changed):
    """What a member says of itself."""
    fields = {
        "journal_id": "journal-1",
        "boot_id": "boot-1",
        "health": "MEMBER_HEALTH_READY",
        "limits": {"kind": "ENGINE_KIND_VLLM", "rank_limit": 16, "slots": 4},
        "residencies": [],
        "rows": [],
    }
    return fields | changed


HELLO = ["O0Attach", line("M0", {"hello": {"member": "engine-1", "pool": "policy", "door_address": "http://x:1", "observed": observed()}})]
LOADED = {"engine_name": "policy-v1-0123456789ab", "version": version(1), "state": "RESIDENCY_STATE_LOADED", "count_known": True}
FLEET = [ADAPTER, stored(1), *HELLO, "w0", "w0"]
SCRIPTS = {
    "attach": FLEET,
    "loaded": [*FLEET, line("M0", {"observed": observed(residencies=[LOADED])}), "w0", "w0", call("GetStatus")],
    "failed": [*FLEET, line("M0", {"observed": observed(residencies=[LOADED | {"state": "RESIDENCY_STATE_FAILED", "reason": "X"}])}), "w0"],
    "observed_first": ["O0Attach", line("M0", {"observed": observed()}), "w0"],
    "two_hellos": [*HELLO, *HELLO, "O1Attach", HELLO[1].replace("M0", "M1"), "X0", "w1"],
    "watch_sync": [*FLEET, "O1WatchSync", line("M1", {"version": version(1), "pool": "policy"}), "H1", "w1", "w1", "X1"],
    "watch": ["O1Watch", line("M1", {"pool": "policy"}), "H1", *FLEET, "w1"],
    "override": [
        *FLEET,
        call("SetOverride", adapter="policy", pool="policy", version=version(1), request_id="me"),
        call("SetOverride", adapter="policy", pool="policy"),
    ],
    "resolve": [*FLEET, call("Resolve", selector="policy@1", pool="policy", holder="me", ttl_ms=1000), call("Resolve", selector="policy", holder="me")],
    "mark": [*FLEET, *(call("MarkMember", member="engine-1", mark=f"MARK_{m}", reason="x") for m in ("EXCLUDED", "INCLUDED", "DEAD"))],
    "adopt": [*FLEET, call("AdoptFleet", cluster="$cluster"), call("AdoptFleet", cluster="other"), call("GetStatus", pool="policy")],
    "restart": [*FLEET, "K0", *HELLO, "w0", "K0"],
    "store_forgets": [
        *FLEET,
        line("S0", {"revision": 3, "changes": [{"version_deleted": version(1)}, {"alias_set": {"adapter": "policy", "name": "eval"}}]}),
        stored(0),
        call("GetStatus"),
    ],
    "policy": [
        line("S0", {"revision": 1, "changes": [{"adapter_set": {"name": "policy", "current_run": 1, "policy": {
            "min_engines": {"percent": 50}, "skip": "SKIP_MODE_NEVER", "max_staleness": 1, "keep": {"versions": 1}}}}]}),
        *FLEET[1:],
        stored(2),
        stored(3),
    ],
}


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, commands in SCRIPTS.items():
        (FOLDER / name).write_bytes("\x1e".join(commands).encode())


if __name__ == "__main__":
    main()
