#!/usr/bin/env python3
"""Writes corpus/store: what publishers, engines and operators ask the store, as commands (see README.md); found inputs are added by hand."""

import json
import pathlib

FOLDER = pathlib.Path(__file__).parent / "corpus" / "store"
POLICY = {"adapter": "policy", "run": 1, "number": 1}
UPLOAD, TICKET = "$BeginUploadResponse.upload_id", "$BeginUploadResponse.ticket"
GET_TICKET = "$OpenFetchResponse.ticket"
BYTES = 50_000  # more than the small image has: pieces beyond its end are left out
PIECE = 16_384


def call(method, how="C0", **fields):
    """A call with one message."""
    return f"{how}{method} {json.dumps(fields, separators=(',', ':'))}"


def begin(how="C0", **changed):
    """BeginUpload of the small image."""
    fields = {"version": POLICY, "attempt": 1, "header": "$header", "config_json": "$config", "image_bytes": "$bytes"}
    return call("BeginUpload", how, **(fields | changed))


def message(slot, **fields):
    """A message on stream `slot`."""
    return f"M{slot}{json.dumps(fields, separators=(',', ':'))}"


OPEN_RUN = call("OpenRun", adapter="policy", request_id="me")
OPEN_PUT = ["O0Put", message(0, open={"ticket": TICKET}), "w0"]
CHUNKS = [f"D0{at} {PIECE}" for at in range(0, BYTES, PIECE)]
PUBLISH = [OPEN_RUN, begin(), *OPEN_PUT, *CHUNKS, "H0", "w0", "w0", "w0", "w0", "w0", call("CommitUpload", upload_id=UPLOAD)]

SCRIPTS = {
    "publish": PUBLISH,
    "publish_fetch": [
        *PUBLISH,
        call("OpenFetch", version=POLICY, peer="engine"),
        "O1Get",
        message(1, ticket=GET_TICKET, ranges=[{"offset": 0, "length": 4096}, {"offset": 0, "length": 4096}]),
        "H1",
        "w1",
    ],
    "relays": [
        *PUBLISH,
        *(call("JoinFanOut", version=POLICY, relay=f"relay://{at}", ticket_key="A" * 43 + "=")
          for at in ("10.0.0.1:1", "proxy.svc@10.0.0.2:1", "[::1]:1", "10.0.0.1:1", "@:")),
    ],
    "read_ahead": [
        "O1FollowUploads", message(1, adapters=["policy", "other"]), "H1", OPEN_RUN, begin(), "w1", *OPEN_PUT, *CHUNKS[:2], "w0",
        "O2Get", message(2, ticket="$FollowUploadsResponse.ticket"), "H2", "w2", call("AbortUpload", upload_id=UPLOAD), "w2",
        begin(attempt=2), "w1", call("FollowUploads", "A0", adapters=[]), call("FollowUploads", "A0", adapters=["No name"]), "X1",
    ],
    "versions": [
        *PUBLISH,
        call("GetVersion", version=POLICY),
        call("ListVersions", adapter="policy", page_size=1),
        call("GetRevision"),
        call("SetAlias", adapter="policy", alias="eval", version=POLICY, expected_generation=0),
        call("DeleteVersion", version=POLICY),
        call("SetAlias", adapter="policy", alias="eval"),
        call("DeleteVersion", version=POLICY),
        "S9",
        call("GetAdapter", name="policy"),
    ],
    "holds": [*PUBLISH, call("SetHolds", holder="orchestrator:a", revision=1, versions=[POLICY]), call("DeleteVersion", version=POLICY)],
    "adapters": [
        call("SetAdapter", name="policy", policy={"keep": {"versions": 2}, "max_staleness": 1}, expected_generation=0),
        call("ListAdapters", page_size=1),
        call("GetAdapter", name="policy"),
        call("OpenRun", adapter="policy", expected_run=0, resume_from=POLICY),
    ],
    "watch": ["O1Watch", message(1, from_revision=0), "H1", OPEN_RUN, "w1", "w1", call("Watch", "A0", from_revision=1), "X1"],
    "abort": [OPEN_RUN, begin(), *OPEN_PUT, call("AbortUpload", upload_id=UPLOAD), "D00 4096", "w0", call("GetUpload", upload_id=UPLOAD)],
    "two_ranks": [OPEN_RUN, begin("A0"), begin("A0"), "W0", call("GetUpload", upload_id=UPLOAD), begin(attempt=2)],
    "commit_early": [OPEN_RUN, "F8", begin(), "U0", call("CommitUpload", upload_id=UPLOAD), call("CommitUpload", upload_id="$found")],
    "commit_before_open": [OPEN_RUN, "F8", begin("A0"), "U0", call("CommitUpload", "A0", upload_id="$found"), "W0"],
    "two_ranks_slow_disk": [
        OPEN_RUN, "F8", begin("A0"), begin("A0"), "U0", call("GetUpload", upload_id="$found"), "W0", call("CommitUpload", upload_id=UPLOAD)],
    "slow_disk": [OPEN_RUN, "F8", begin("A0"), "U0", call("GetUpload", upload_id="$found"), "W0"],
    "disk_full": [OPEN_RUN, "F0", begin(), "F7", begin(), "F1", *OPEN_PUT, *CHUNKS, "w0", call("CommitUpload", upload_id=UPLOAD)],
    "idle": [OPEN_RUN, begin(), *OPEN_PUT, "D00 4096", "w0", "S2", "S:", begin(attempt=2)],
    "chunk_by_hand": [OPEN_RUN, begin(), *OPEN_PUT, message(0, chunk={"offset": 8, "data": "AAAA", "checksum": "AAAAAAAAAAAAAAAAAAAAAA=="})],
    "same_range_twice": [OPEN_RUN, begin(), *OPEN_PUT, "O1Put", message(1, open={"ticket": TICKET}), "D00 4096", "D10 4096", "w0", "w1"],
    "silent_puts": ["o2Put", "o1Get"],
    "silent_puts_in_every_place": ["o4Put"],
    "great_image": ["B0", "O0Get", "G04 0 0", "H0", "w0", "O1Get", "G18 1048576 4096", "H1", "w1"],
    "great_image_in_pieces": ["B0", "O0Get", "G03 0 4096", "w0", "w0", "O1Get", "G12 4096 65536", "H1", "w1", "H0"],
    "great_image_twice": ["B0", "O0Get", "O1Get", "G05 0 1048576", "G14 1048576 0", "H0", "H1", "w0", "w1", "w0", "w1"],
    **{f"great_image_{2**log2}_times": ["B0", "O0Get", f"G0{log2} 0 0", "H0", "w0"] for log2 in (0, 3, 6)},
    "great_request": ["B0", "O0Get", "G016 0 0", "H0", "w0"],
    "no_ticket": ["O0Put", message(0, open={"ticket": "AAAA"}), "w0", "O1Get", message(1, ticket=""), "w1"],
}


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, commands in SCRIPTS.items():
        (FOLDER / name).write_bytes("\x1e".join(commands).encode())


if __name__ == "__main__":
    main()
