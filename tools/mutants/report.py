"""What a person reads at the end: per file the counts, then the mutants that nobody noticed, with their lines."""

import collections
from collections.abc import Iterable

from mutants import EQUIVALENT, KILLED, NOT_REACHED, SURVIVED, Mutant, Notes, Verdict

KINDS = (KILLED, SURVIVED, NOT_REACHED, EQUIVALENT)


def tables(judged: list[tuple[Mutant, Verdict]]) -> str:
    lines = [f"{'':52}{'mutants':>8}{'killed':>8}{'by seeds':>9}{'survived':>9}{'unreached':>10}{'equal':>7}{'killed':>8}{'by seeds':>9}"]
    by_file = collections.defaultdict(list)
    for mutant, verdict in judged:
        by_file[mutant.file].append(verdict)
    for file in sorted(by_file):
        lines.append(_row(file, by_file[file]))
    by_folder = collections.defaultdict(list)
    for mutant, verdict in judged:
        by_folder[mutant.file.rpartition("/")[0]].append(verdict)
    lines.append("")
    for folder in sorted(by_folder):
        lines.append(_row(folder, by_folder[folder]))
    return "\n".join([*lines, _row("all", [verdict for _, verdict in judged])])


def _row(name: str, verdicts: list[Verdict]) -> str:
    counts = collections.Counter(verdict.what for verdict in verdicts)
    seeds = sum(verdict.what == KILLED and verdict.by == "seeds" for verdict in verdicts)
    others = len(verdicts) - counts[EQUIVALENT]  # what could be killed at all
    share = [f"{100 * count / others:.1f} %" if others else "" for count in (counts[KILLED], seeds)]
    return (f"{name[-51:]:52}{len(verdicts):>8}{counts[KILLED]:>8}{seeds:>9}{counts[SURVIVED]:>9}{counts[NOT_REACHED]:>10}"
            f"{counts[EQUIVALENT]:>7}{share[0]:>8}{share[1]:>9}")


def unnoticed(judged: Iterable[tuple[Mutant, Verdict]]) -> str:
    lines: list[str] = []
    last = None
    for mutant, verdict in judged:
        if verdict.what not in (SURVIVED, NOT_REACHED):
            continue
        if last != (mutant.file, mutant.line):
            lines.append(f"{mutant.file}:{mutant.line}: {mutant.text}")
            last = (mutant.file, mutant.line)
        lines.append(f"    {mutant.number:>6} {verdict.what}: {mutant.short}")
    return "\n".join(lines)


def by_name(judged: Iterable[tuple[Mutant, Verdict]], named: Notes) -> str:
    """The faults that people have given names."""
    lines = []
    for mutant, verdict in judged:
        name = named.on(mutant)
        if name is not None:
            lines.append(f"  {name:40} {verdict.what} {verdict.by} {verdict.detail}".rstrip())
    return "\n".join(["", "by name:", *lines, ""]) if lines else ""
