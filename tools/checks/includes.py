"""The dependency rule of docs/ARCHITECTURE.md, read off the #include lines."""

import re

from checks.tree import Finding, Tree, line_of

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)

# What a library of lib/ may include of the others. base may be included by all.
LIBRARIES = {
    "base": (),
    "peft": (),
    "fleet": ("peft",),
    "runtime": ("metrics",),
    "metrics": (),
    "kv": (),
    "blob": (),
    "rpc": ("fleet", "peft", "runtime", "metrics"),
    "program": ("rpc", "runtime", "metrics", "transfer"),
    "transfer": ("peft", "rpc", "blob", "runtime", "metrics"),
}

# A foreign header → where it may appear. One folder each, so that replacing the library is one folder's work.
HOMES = {
    r"uc[pst]/": ("lib/transfer/ucx/", "tests/bench/"),
    r"cuda(_runtime)?(_api)?\.h": ("clients/gpu/", "tests/gpu/", "tests/unit/gpu/"),
    r"sqlite3\.h": ("lib/kv/sqlite/",),
    r"prometheus/": ("lib/metrics/", "tests/unit/metrics/"),
    r"simdjson\.h": ("services/engine_proxy/door/", "tests/unit/", "tests/bench/", "tests/fuzz/"),
    r".*\.pb\.h": ("lib/rpc/", "services/*/rpc/", "clients/", "lib/transfer/grpc/", "lib/transfer/ucx/", "lib/kv/etcd/",
                   "proto/", "tests/", "examples/"),
}

PURE = ("lib/fleet/", "lib/peft/", "services/*/machine/")
# Things with effects, which a pure core receives as events and hands out as effects.
IMPURE = re.compile(
    r"grpc(pp)?/.*|absl/time/clock\.h|absl/synchronization/.*|absl/random/.*|boost/(asio|beast)/.*|spdlog/.*|sqlite3\.h|"
    r"thread|mutex|shared_mutex|condition_variable|future|atomic|semaphore|latch|barrier|stop_token|random|filesystem|"
    r"fstream|ctime|time\.h|unistd\.h|fcntl\.h|sys/.*|pthread\.h|lib/base/mutex\.h|lib/(runtime|metrics|kv|blob|rpc|transfer)/.*"
)


def check(tree: Tree) -> list[Finding]:
    findings = []
    for path in tree.cpp():
        code = tree.code_with_strings(path)
        for match in _INCLUDE.finditer(code):
            line, target = line_of(code, match.start()), match.group(1)
            for rule, message in _problems(path, target):
                findings.append(Finding(path, line, rule, message))
    return findings


def _problems(path: str, target: str) -> list[tuple[str, str]]:
    problems = []
    if target.startswith("../") or "/../" in target:
        problems.append(("include-path", f'"{target}": write it from the root of the repository'))
    for pattern, homes in HOMES.items():
        if re.fullmatch(pattern + (".*" if pattern.endswith("/") else ""), target) and not _within(path, homes):
            problems.append(("include-home", f"{target} belongs to {', '.join(homes[:3])} only: use the seam that wraps it"))
    if _within(path, PURE) and IMPURE.fullmatch(target):
        problems.append(("pure-core", f"{target} in a pure core: take an event, hand out an effect, let a driver do it"))
    problem = _direction(path, target)
    return problems + ([("direction", problem)] if problem else [])


def _direction(path: str, target: str) -> str | None:
    """Why `path` may not include `target`, if it may not: lib ← cores ← drivers and rpc ← main; clients use no service."""
    here, there = path.split("/"), target.split("/")
    if len(there) < 2 or there[0] not in ("lib", "services", "clients", "tests", "examples"):
        return None
    if there[0] == "tests" and here[0] != "tests":
        return f"{target}: only tests include tests"
    if here[0] == "lib":
        if there[0] != "lib":
            return f"{target}: lib/ knows no {there[0]}/; move what both need into lib/"
        if there[1] not in ("base", here[1]) and there[1] not in LIBRARIES.get(here[1], ()):
            allowed = ", ".join(("base", *LIBRARIES.get(here[1], ())))
            return f"{target}: lib/{here[1]} may use {allowed} (LIBRARIES in tools/checks/includes.py)"
    if here[0] == "services":
        if there[0] not in ("lib", "services"):
            return f"{target}: a service uses lib/ and proto/ only"
        if there[0] == "services" and there[1] != here[1]:
            return f"{target}: services never include each other; they talk by RPC"
        if there[0] == "services" and here[2:3] == ["machine"] and there[2:3] != ["machine"]:
            return f"{target}: a machine knows no driver, rpc or door"
    if here[0] in ("clients", "examples") and there[0] == "services":
        return f"{target}: clients use proto/ and lib/, never a service"
    return None


def _within(path: str, homes: tuple[str, ...]) -> bool:
    return any(re.match(re.escape(home).replace(r"\*", "[^/]+"), path) for home in homes)
