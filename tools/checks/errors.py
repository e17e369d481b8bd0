"""docs/ERRORS.md and the reasons in the code are one list.

A reason reaches its reader by many ways: Error(code, "REASON", …), a ternary, a field, a metric's label. So every quoted
word that is spelled like a reason counts as one, unless it stands below with what it is instead.
"""

import re

from checks.tree import Finding, Tree, line_of

TABLE = "docs/ERRORS.md"
OWN = "tools/checks/errors.py"
_WORD = r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*"
_LETTERS_MIN = 4
_LITERAL = re.compile(rf'"({_WORD})"')
_PYTHON_LITERAL = re.compile(rf"""["']({_WORD})["']""")
_ROW = re.compile(rf"^\| `({_WORD})` \|", re.MULTILINE)
_PLANNED = re.compile(r"^## Planned$", re.MULTILINE)

# What is spelled like a reason and is none: where, and the words. A word that is gone from there is reported too.
NO_REASON = {
    # states, phases and standings
    "lib/fleet/observed.cc": "ABSENT FETCHING FETCHED LOADING LOADED UNLOADING FAILED CLOSED OPEN HELD LOCKED JOINING READY ASLEEP WEDGED",
    "services/engine_proxy/machine/tables.cc": "ABSENT FETCHING CANCELLING FETCHED HASHING CHECKING DELETING LOADING VERIFYING PROBING DOUBTED LOADED "
                                               "UNLOADING FAILED CLOSED OPEN HELD LOCKED NONE PAUSING PAUSED RESUMING",
    "services/sync_orchestrator/machine/roster.cc": "JOINING ASLEEP WEDGED EXCLUDED LOST DEAD READY",
    "services/sync_orchestrator/machine/reasons.cc": "OPEN PROVEN",
    "services/sync_orchestrator/machine/status.cc": "IDLE STAGING HOLDING LOCKING",
    "clients/cli/doctor.cc": "READY ASLEEP EXCLUDED DEAD LOST ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789",
    "clients/cli/status_view.cc": "READY JOINING ASLEEP EXCLUDED",
    "clients/cli/verbs_local.cc": "READY",
    "clients/python/src/lorry/__init__.py": "ALONE",
    "clients/python/src/lorry/handle.py": "UPLOADING STORED_AT_STORE ACTIVE STORED FAILED ABSENT UNSPECIFIED",
    "clients/python/src/lorry/lora_args.py": "LORA",
    "clients/python/src/lorry/on_the_way.py": "RESOURCE_EXHAUSTED",
    "clients/python/src/lorry/miles.py": "LORA",
    "clients/python/src/lorry/trl.py": "LORA",
    "clients/python/src/lorry/bench/": "MAX MEDIAN MIN MOVES PATH POST RATIO READY",
    "lib/blob/spare_files.cc": "SPARE",
    # environment variables
    "clients/python/src/lorry/mover.py": "LORRY_MOVER",
    "lib/rpc/server.cc": "GRPC_VERBOSITY",
    "clients/cli/verbs_bench.cc": "LORRY_PYTHON PYTHONPATH",
    "clients/python/src/lorry/gpu.py": "BF16 INTERNAL LORRY_GPU",
    "services/engine_proxy/driver/base_model_finder.cc": "HF_HUB_CACHE HF_HOME XDG_CACHE_HOME HOME",
    # heads of columns, placeholders of arguments, ends of enumerators
    "clients/cli/": "ADAPTER ADDRESS ALIASES DETAIL DIGEST DOOR DURATION ENGINE ENGINES EPOCH FIELD FILE GENERATION HOLDER KIND LATEST LOADED MARK "
                    "MEMBER MODULES NAME NEWEST PHASE POOL RANK REQUEST REQUEST_ID SERVES SERVICE SHELL SIZE SLOTS STATE STORED TEXT TIME UNSPECIFIED VALUE VERB "
                    "VERSION",
    "clients/python/src/lorry/admin.py": "SGLANG VLLM",
    "clients/python/src/lorry/policies.py": "UNSPECIFIED",
    "clients/python/src/lorry/reach.py": "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH RECORD_LAYER WRONG_VERSION_NUMBER",
    # gRPC's own words
    "lib/rpc/channel.cc": "UNAVAILABLE",
    "clients/python/src/lorry/": "ABORTED ALREADY_EXISTS CANCELLED DEADLINE_EXCEEDED FAILED_PRECONDITION INVALID_ARGUMENT NOT_FOUND "
                                 "UNAVAILABLE UNKNOWN",
    # SQL, HTTP, types of tensors and adapters
    "lib/kv/sqlite/": "BEGIN COMMIT ROLLBACK",
    "services/engine_proxy/": "HEAD POST",
    "lib/peft/dtype.cc": "BOOL BF16 F8_E4M3 F8_E4M3FNUZ F8_E5M2 F8_E5M2FNUZ F8_E8M0",
    "lib/peft/config.cc": "LORA",
    "lib/peft/render.cc": "LORA",
    "clients/python/src/lorry/image.py": "BF16 F8_E4M3 F8_E5M2",
    # variables of the environment and settings of UCX
    "clients/": "HOME LORRY_CA_FILE LORRY_CERT_FILE LORRY_KEY_FILE LORRY_ORCHESTRATOR LORRY_STORE LORRY_TOKEN LORRY_TOKEN_FILE NO_COLOR "
                "XDG_STATE_HOME",
    "lib/runtime/fault_point.cc": "LORRY_FAULT",
    "lib/transfer/ucx/log.cc": "UCX_LOG_FILE",
    "lib/transfer/ucx/config.cc": "MM_ERROR_HANDLING MM_FIFO_SIZE NET_DEVICES RX_SEG_SIZE TX_SEG_SIZE "
                                  "UCX_MM_ERROR_HANDLING UCX_MM_FIFO_SIZE UCX_POSIX_ERROR_HANDLING UCX_POSIX_FIFO_SIZE UCX_RX_SEG_SIZE "
                                  "UCX_TCP_RX_SEG_SIZE UCX_TCP_TX_SEG_SIZE UCX_TX_SEG_SIZE",
}


def check(tree: Tree) -> list[Finding]:
    if TABLE not in tree.paths:
        return [Finding(TABLE, 1, "errors", "write the table of reasons")]
    table = tree.text(TABLE)
    split = _PLANNED.search(table)
    planned_from = split.start() if split else len(table)
    rows = {match.group(1): match.start() for match in _ROW.finditer(table)}
    used, findings = _used(tree)
    for reason, (path, line) in sorted(used.items()):
        if reason not in rows:
            findings.append(Finding(path, line, "errors", f"{reason} is not in {TABLE}: add its row, or reuse a reason; "
                                    f"what is no reason goes to NO_REASON of {OWN}"))
        elif rows[reason] > planned_from:
            findings.append(Finding(path, line, "errors", f"{reason} is in use: move its row in {TABLE} out of Planned"))
    for reason, offset in rows.items():
        if offset < planned_from and reason not in used:
            findings.append(Finding(TABLE, line_of(table, offset), "errors", f"nothing gives {reason}: delete the row or move it to Planned"))
    names = _ROW.findall(table)
    findings += [Finding(TABLE, 1, "errors", f"{name} has two rows") for name in sorted({n for n in names if names.count(n) > 1})]
    return findings


def _used(tree: Tree) -> tuple[dict[str, tuple[str, int]], list[Finding]]:
    """Each reason with a place that names it, and what NO_REASON lists in vain."""
    used: dict[str, tuple[str, int]] = {}
    met: dict[str, set[str]] = {where: set() for where in NO_REASON if any(path.startswith(where) for path in tree.paths)}
    for path, text, literal in _shipped(tree):
        places = [where for where in met if path.startswith(where)]
        excused = {word for where in places for word in NO_REASON[where].split()}
        for match in literal.finditer(text):
            word = match.group(1)
            if word in excused:
                for where in places:
                    met[where].add(word)
            elif len(word) >= _LETTERS_MIN:
                used.setdefault(word, (path, line_of(text, match.start())))
    vain = [] if OWN not in tree.paths else [
        Finding(OWN, 1, "errors", f"{where} has no {word} any more: take it out of NO_REASON")
        for where, words in met.items() for word in NO_REASON[where].split() if word not in words
    ]
    return used, vain


def _shipped(tree: Tree) -> list[tuple[str, str, re.Pattern[str]]]:
    """Path, text and what a literal looks like there, of every source that is shipped."""
    cpp = [path for path in tree.cpp() if path.startswith(("lib/", "services/", "clients/"))]
    python = [path for path in tree.python() if path.startswith("clients/python/src/")]
    return [(path, tree.code_with_strings(path), _LITERAL) for path in cpp] + \
        [(path, tree.text(path), _PYTHON_LITERAL) for path in python]
