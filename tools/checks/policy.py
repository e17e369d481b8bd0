"""Every field of an adapter's policy is acted on by a service, or refused where it is set.

A setting that is accepted and read by nobody looks as if it did something. CheckBuilt (lib/rpc/policy_messages.cc) is where
what is not built yet is refused.
"""

import re

from checks.tree import Finding, Tree, line_of

POLICY = "lib/fleet/policy.h"
REFUSALS = "lib/rpc/policy_messages.cc"
# Reading a field into a message or a record is not acting on it.
_CODECS = re.compile(r"/(codec|records_json)\.cc$")


def check(tree: Tree) -> list[Finding]:
    if POLICY not in tree.paths:
        return []
    text = tree.text(POLICY)
    acted_on = "\n".join(tree.text(path) for path in tree.cpp() if path.startswith("services/") and not _CODECS.search(path))
    refused = _body(tree.text(REFUSALS), "CheckBuilt")
    return [
        Finding(POLICY, line_of(text, at), "policy-field",
                f"no service acts on `{name}` of a policy: act on it, or refuse it in CheckBuilt ({REFUSALS})")
        for name, at in _fields(text)
        if not _reads(acted_on, name) and not _reads(refused, name)
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


def _body(text: str, function: str) -> str:
    begin = re.search(rf"\b{function}\([^;{{]*\{{", text)
    return text[begin.end(): text.index("\n}", begin.end())] if begin else ""
