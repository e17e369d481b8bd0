"""Calls and words that have a better way, and the better way."""

import dataclasses
import re

from checks.tree import Finding, Tree, line_of

_ALLOW = re.compile(r"tidy: allow ([\w-]+): \S")
# Spelled in two parts, so that this file passes its own check.
_MARKERS = "|".join(("TO" "DO", "FIX" "ME", "X" "XX", "HA" "CK"))


@dataclasses.dataclass(frozen=True)
class Ban:
    rule: str
    pattern: str
    remedy: str
    where: str = r".*"  # paths that it holds for
    not_where: str = r"(?!)"
    in_strings: bool = False


CPP_BANS = (
    Ban("sleep", r"\b(?:sleep_for|sleep_until|usleep|nanosleep|SleepFor)\s*\(|(?<![\w.>:])sleep\s*\(",
        "wait for the state itself: a condition variable, an event, ManualClock"),
    Ban("detach", r"[.>]\s*detach\s*\(\s*\)", "keep the thread and join it: a detached thread outlives what it uses"),
    Ban("rand", r"\b(?:std::)?s?rand\s*\(|\bdrand48\s*\(|\bstd::mt19937", "lorry::Prng with a seed that a failure prints"),
    Ban("shell", r"(?<![\w.>:])(?:std::|::)?(?:system|popen)\s*\(", "posix_spawn with an argument list: no shell, no quoting",
        where=r"(lib|services|clients)/"),
    Ban("unbounded-copy", r"\b(?:strcpy|strcat|sprintf|vsprintf|gets|strtok)\s*\(", "std::string, absl::StrCat or absl::StrFormat"),
    Ban("silent-parse", r"\b(?:atoi|atol|atoll|atof)\s*\(", "absl::SimpleAtoi and kin, which report failure"),
    Ban("assert", r"\bassert\s*\(", "LORRY_CHECK, which stays on in release builds"),
    Ban("throw", r"\bthrow\b", "return absl::Status; nothing throws across our interfaces", where=r"(lib|services|clients)/",
        not_where=r".*_json\.cc$"),  # where the JSON library's own exceptions are caught in the same file
    Ban("using-namespace", r"\busing\s+namespace\b", "using-declarations for the names that are used",
        where=r"(lib|services|clients)/"),
    Ban("print", r"\bstd::(?:cout|cerr|printf)\b|(?<![\w:])printf\s*\(", "spdlog, one line of key=value", where=r"(lib|services)/",
        not_where=r".*/main\.cc$"),
    Ban("raw-mutex", r"\bstd::(?:mutex|recursive_mutex|shared_mutex|lock_guard|unique_lock|scoped_lock|condition_variable)\b|"
        r"\babsl::Mutex\b", "lorry::Mutex, MutexLock and CondVar, which clang's analysis checks",
        where=r"(lib|services|clients)/", not_where=r"lib/base/mutex\.h"),
    Ban("insecure-listen", r"\bInsecureServerCredentials\b",
        "rpc::Server::Start, which refuses a plaintext port off this host unless an operator declared it", where=r"(lib|services|clients)/",
        not_where=r"lib/rpc/server\.cc"),
    Ban("clock", r"\b(?:system_clock|steady_clock|high_resolution_clock)::now\b|\babsl::Now\b|(?<![\w.>:])time\s*\(\s*(?:NULL|nullptr|0)",
        "take a lorry::Clock, so that tests can turn it", where=r"services/.*/machine/|lib/(fleet|peft)/"),
    Ban("using-clock", r"\bSteadyClock\b|\bPrng\b", "a pure core gets Ticks and seeds in events", where=r"services/.*/machine/|lib/(fleet|peft)/"),
    Ban("fixed-port", r"^(?!.*Parse).*?(?:127\.0\.0\.1|localhost|0\.0\.0\.0|\[::1?\]):(?!0\b|1\b|9\b)\d+", "bind port 0 and ask which one it became",
        where=r"tests/", in_strings=True),
    Ban("shared-temp", r"\"/tmp/(?![^\"\n]*XXXXXX)", "::testing::TempDir() or mkdtemp: two runs may overlap", where=r"tests/", in_strings=True),
)

PYTHON_BANS = (
    Ban("sleep", r"\btime\.sleep\s*\(", "wait for the state itself: an event, a process's exit, a poll with a deadline", where=r"tests/"),
    Ban("shell", r"\bos\.system\s*\(|\bos\.popen\s*\(|shell\s*=\s*True", "subprocess.run with a list: no shell, no quoting"),
    Ban("bare-except", r"^\s*except\s*:", "name the exceptions"),
    Ban("fixed-port", r"(?:127\.0\.0\.1|localhost|0\.0\.0\.0):(?!0\b|1\b|9\b)\d+", "bind port 0 and ask which one it became", where=r"tests/"),
    Ban("shared-temp", r"[\"']/tmp/", "tempfile.mkdtemp or pytest's tmp_path: two runs may overlap", where=r"tests/"),
    Ban("unpickle", r"\bpickle\.loads?\s*\(", "a format that runs nothing when it is read", where=r"(clients|examples|tools)/"),
)

WORDS = Ban("unfinished", rf"\b(?:{_MARKERS})\b", "do it now, or open an issue and say in a comment what the limit is")
_TEXT = (".h", ".cc", ".cu", ".py", ".proto", ".sh", ".md", ".yaml", ".yml", ".tpl", ".cmake", ".txt", ".toml")


def check(tree: Tree) -> list[Finding]:
    findings = []
    for path in tree.cpp():
        for ban in CPP_BANS:
            text = tree.code_with_strings(path) if ban.in_strings else tree.code(path)
            findings += _apply(tree, ban, path, text)
        findings += _header(tree, path)
    for path in tree.python():
        for ban in PYTHON_BANS:
            findings += _apply(tree, ban, path, tree.text(path))
    for path in tree.ending(*_TEXT):
        findings += _apply(tree, WORDS, path, tree.text(path))
    return findings


def _apply(tree: Tree, ban: Ban, path: str, text: str) -> list[Finding]:
    if not re.match(ban.where, path) or re.match(ban.not_where, path) or _is_own_test(path):
        return []
    lines = tree.lines(path)
    findings = []
    for match in re.finditer(ban.pattern, text, re.MULTILINE):
        number = line_of(text, match.start())
        allowed = [_ALLOW.search(line) for line in lines[max(0, number - 2):number]]
        if not any(found and found.group(1) == ban.rule for found in allowed):
            findings.append(Finding(path, number, ban.rule, f"{match.group().strip()} … {ban.remedy}"))
    return findings


def _header(tree: Tree, path: str) -> list[Finding]:
    if not path.endswith((".h", ".cuh")):
        return []
    findings = []
    if "#pragma once" not in tree.text(path):
        findings.append(Finding(path, 1, "pragma-once", "add #pragma once below the opening comment"))
    if not tree.text(path).startswith("//"):
        findings.append(Finding(path, 1, "opening-comment", "open with what the thing is, which thread may touch it and who owns it"))
    return findings


def _is_own_test(path: str) -> bool:
    """The tests of these checks quote what they ban."""
    return path.startswith(("tests/unit/tidy/", "tools/checks/banned.py"))
