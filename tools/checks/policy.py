"""Every field of an adapter's policy is acted on by a service.

A setting that is accepted and read by nobody looks as if it did something.
"""

import re

from checks.tree import Finding, Tree, line_of

POLICY = "lib/fleet/policy.h"
# Reading a field into a message or a record is not acting on it.
_CODECS = re.compile(r"/(codec|records_json)\.cc$")


def check(tree: Tree) -> list[Finding]:
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
