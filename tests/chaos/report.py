"""What the campaign came to, as a table for people."""

from __future__ import annotations

import re
import statistics
from collections import Counter

from ledger import Ledger, Violation

SHOWN_MAX = 40
# What struck so long before a violation may have to do with it.
BEFORE_S = 20.0


def print_report(ledger: Ledger, violations: list[Violation], seed: int, seconds: float) -> None:
    print(f"\nLorry chaos: seed {seed}, {seconds:.0f} s\n")
    print(f"  {'fault':<34} {'count':>5}  {'recovery median / max, s':>25}")
    kinds: dict[str, list[float]] = {}
    for fault in ledger.faults:
        took = fault.recovered - fault.healed if fault.recovered else float("inf")
        kinds.setdefault(fault.kind, []).append(took)
    for kind, took in sorted(kinds.items()):
        print(f"  {kind:<34} {len(took):>5}  {statistics.median(took):>14.1f} / {max(took):>8.1f}")
    statuses = Counter(str(r.status) if r.status in (0, 200) else f"{r.status} {r.reason}" for r in ledger.replies)
    print(f"\n  requests {len(ledger.replies)}: " + ", ".join(f"{n} × {s}" for s, n in statuses.most_common()))
    bound = [b for b in list(ledger.binds) if b.done]
    calls = Counter("done" if c.status == 200 else "refused or broken" for c in ledger.calls)
    print(f"  frameworks: {len(bound)} names bound, {len(ledger.holds)} pauses and sleeps, calls "
          + ", ".join(f"{n} × {s}" for s, n in calls.most_common()))
    outcomes = Counter(p.outcome or "unfinished" for p in ledger.all_published())
    print(f"  publishes {len(ledger.published)}: " + ", ".join(f"{n} × {o}" for o, n in outcomes.most_common()))
    served = [p.ended - p.began for p in ledger.all_published() if p.outcome == "SERVING"]
    if served:
        print(f"  publish → serving, median / max: {statistics.median(served):.2f} / {max(served):.2f} s")
    print(f"\n  violations: {len(violations)}")
    for what, count in Counter(_kind(v.what) for v in violations).most_common(SHOWN_MAX):
        print(f"    {count:5} × {what}")
    for violation in violations[:SHOWN_MAX]:
        print(f"    {violation.at - ledger.began:8.2f} s  {violation.what}")
        print(f"               {_around(ledger, violation.at)}")
    if len(violations) > SHOWN_MAX:
        print(f"    and {len(violations) - SHOWN_MAX} more")
    if violations:
        print(f"\n  seed {seed} fails; again: make chaos SEED={seed} SECONDS={seconds:.0f}")


def _kind(what: str) -> str:
    """Without what tells one from another of its kind."""
    return re.sub(r"(policy|strict|barrier)\S*|(sglang|vllm)-\d+|r?\d[\d.]*", "…", what)[:100]


def _around(ledger: Ledger, at: float) -> str:
    near = [f for f in ledger.faults if f.struck <= at and at - (f.recovered or f.healed or at) < BEFORE_S]
    said = [f"{f.kind} ({f.detail}) {f.struck - ledger.began:.1f}–{f.healed - ledger.began if f.healed else 0:.1f} s" for f in near]
    return "after " + ", ".join(said) if said else "with no fault near"
