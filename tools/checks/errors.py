"""docs/ERRORS.md and the reasons in the code are one list."""

import re

from checks.tree import Finding, Tree, line_of

TABLE = "docs/ERRORS.md"
_WORD = r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+"
# Error(absl::StatusCode::kX, "REASON", …) and the shorthands around it: Refuse("REASON", …), Refused{503, "REASON", …}.
_CALL = re.compile(
    r"\b\w*(?:Error|[Rr]efus\w*|Reject\w*|Invalid\w*|Precondition|Conflict\w*)[({]\s*"
    r'(?:\d{3}\s*,\s*|[\w:]*StatusCode::k\w+\s*,\s*)?"(' + _WORD + ')"'
)
_LITERAL = re.compile(rf'["\'`]({_WORD})["\'`]')
_ROW = re.compile(rf"^\| `({_WORD})` \|", re.MULTILINE)
_PLANNED = re.compile(r"^## Planned$", re.MULTILINE)


def check(tree: Tree) -> list[Finding]:
    if TABLE not in tree.paths:
        return [Finding(TABLE, 1, "errors", "write the table of reasons")]
    table = tree.text(TABLE)
    split = _PLANNED.search(table)
    planned_from = split.start() if split else len(table)
    rows = {match.group(1): match.start() for match in _ROW.finditer(table)}
    used = _used(tree)
    findings = []
    for reason, (path, line) in sorted(used.items()):
        if reason not in rows:
            findings.append(Finding(path, line, "errors", f"{reason} is not in {TABLE}: add its row, or reuse a reason"))
        elif rows[reason] > planned_from:
            findings.append(Finding(path, line, "errors", f"{reason} is in use: move its row in {TABLE} out of Planned"))
    mentioned = _mentioned(tree)
    for reason, offset in rows.items():
        if offset < planned_from and reason not in mentioned:
            findings.append(Finding(TABLE, line_of(table, offset), "errors", f"nothing gives {reason}: delete the row or move it to Planned"))
    names = _ROW.findall(table)
    findings += [Finding(TABLE, 1, "errors", f"{name} has two rows") for name in sorted({n for n in names if names.count(n) > 1})]
    return findings


def _shipped(tree: Tree) -> list[str]:
    return [path for path in tree.cpp() if path.startswith(("lib/", "services/", "clients/"))]


def _used(tree: Tree) -> dict[str, tuple[str, int]]:
    used: dict[str, tuple[str, int]] = {}
    for path in _shipped(tree):
        code = tree.code_with_strings(path)
        for match in _CALL.finditer(code):
            used.setdefault(match.group(1), (path, line_of(code, match.start())))
    return used


def _mentioned(tree: Tree) -> set[str]:
    """Every reason-like literal of what is shipped: a reason may travel through a table or a variable."""
    paths = _shipped(tree) + [path for path in tree.python() if path.startswith("clients/")]
    return {word for path in paths for word in _LITERAL.findall(tree.text(path))}
