"""Every field of an adapter's policy is acted on by a service.

A setting that is accepted and read by nobody looks as if it did something.
"""

import re

from checks.tree import Finding, Tree, line_of

PROTO = "proto/lorry/common/v1/adapter.proto"
READER = "lib/rpc/policy_messages.cc"
POLICY = "lib/fleet/policy.h"
# Reading a field into a message or a record is not acting on it.
_CODECS = re.compile(r"/(codec|records_json)\.cc$")


def check(tree: Tree) -> list[Finding]:
    return _unread(tree) + _idle(tree)


def _unread(tree: Tree) -> list[Finding]:
    """Fields that users can set, and that no message is read for."""
    if PROTO not in tree.paths:
        return []
    text = tree.text(PROTO)
    begin = text.index("message AdapterPolicy {")
    end = text.index("\n}", begin)
    reader = tree.text(READER) if READER in tree.paths else ""
    return [
        Finding(PROTO, line_of(text, begin + found.start(1)), "policy-field",
                f"{READER} does not read `{found.group(1)}`, so that it does nothing where it is set: read it, or take it away")
        for found in re.finditer(r"^  (?:repeated |optional )?\w+ (\w+) = \d+;", text[begin:end], re.MULTILINE)
        if not re.search(rf"\bpolicy\.(has_)?{found.group(1)}\(\)", reader)
    ]


def _idle(tree: Tree) -> list[Finding]:
    """Fields that are read, and that no service acts on."""
    if POLICY not in tree.paths:
        return []
    text = tree.text(POLICY)
    acted_on = "\n".join(tree.text(path) for path in tree.cpp() if path.startswith("services/") and not _CODECS.search(path))
    return [
        Finding(POLICY, line_of(text, at), "policy-field",
                f"no service acts on `{name}` of a policy: act on it, or take it away")
        for name, at in _fields(text)
        if not _reads(acted_on, name)
    ]


def _fields(text: str) -> list[tuple[str, int]]:
    begin = text.index("struct AdapterPolicy {")
    end = text.index("\n};", begin)
    return [
        (found.group(1), begin + found.start(1))
        for found in re.finditer(r"^  [\w:<>, ]+ (\w+)(?: = [^;]*)?;", text[begin:end], re.MULTILINE)
    ]


# Fields that services act on through what is made of them in lib/fleet.
_DERIVED = {
    "keep": r"policy(\.|->)KeepCount\(\)",
    "barrier_deadline_ms": r"policy(\.|->)HoldLimitMs\(\)",
    "drain_deadline_ms": r"policy(\.|->)HoldLimitMs\(\)",
    "flush": r"QuiesceOf\([\w.]*policy\)",
}


def _reads(text: str, field: str) -> bool:
    if field in _DERIVED and re.search(rf"\b{_DERIVED[field]}", text):
        return True
    return field != "keep" and re.search(rf"\b(policy|plain|rules)(\.|->){field}\b", text) is not None
