"""How fast Lorry and its peers carry the same bytes between processes of one host: one table, and the same as JSON.

Peers take turns, each a few rounds, and then all again: what the machine does meanwhile strikes each of them. A figure is the median of
a row's rounds. `bare` ends when the bytes have arrived, `hashed` when each receiver has also hashed them, which Lorry always does; bytes
are compared after bare rounds, too. With several receivers the bytes of all count. Rounds are kept apart by the state that the machine
was in: a cache line goes from core to core and back in about 50 ns (near) or 320 ns (far). A peer that fails once is a failed row.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import types

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]

import environments
import turn
from turn import Failed
from worker import load

REFERENCE = "Lorry"
PING_S = 60
FAR_NS, UNCLEAR_NS = 126.0, 1000.0  # above the latter the cores did something else, too
LARGE_MB = 1000


@dataclasses.dataclass
class Row:
    """One way to carry so many bytes to so many receivers."""

    name: str
    runner: types.ModuleType
    bytes: int
    receivers: int
    failed: str = ""
    rounds: list[dict] = dataclasses.field(default_factory=list)

    def gigabytes(self, what: str, state: str) -> float | None:
        """The median of its rounds, 10^9 bytes a second."""
        seconds = [r[what] for r in self.rounds if r["state"] == state and r[what] is not None]
        return self.bytes * self.receivers / statistics.median(seconds) / 1e9 if seconds else None

    def json(self) -> dict:
        states = sorted({r["state"] for r in self.rounds})
        return {"name": self.name, "bytes": self.bytes, "receivers": self.receivers, "failed": self.failed or None, "rounds": self.rounds,
                "median_GBps": {} if self.failed else {s: {w: self.gigabytes(w, s) for w in ("bare", "hashed")} for s in states}}


def rows_of(folder: pathlib.Path, size: int, receivers: int, only: list[str]) -> list[Row]:
    rows = []
    for path in sorted(folder.glob("*.py"), key=lambda path: (path.stem != REFERENCE.lower(), path.stem)):
        runner = load(path)
        for name in runner.ROWS:
            if not only or path.stem in only:
                rows.append(Row(name, runner, size, receivers))
                if receivers > runner.RECEIVERS:
                    rows[-1].failed = f"serves {runner.RECEIVERS} receiver alone"
    return rows


def ping(bin_dir: str) -> tuple[float | None, str]:
    """Nanoseconds, and the state that they tell of."""
    try:
        output = subprocess.run([str(pathlib.Path(bin_dir) / "transfer_bench"), "ping"], capture_output=True, check=True, timeout=PING_S).stdout
    except (OSError, subprocess.SubprocessError):
        return None, "unknown"
    nanoseconds = float(output)
    return nanoseconds, "near" if nanoseconds < FAR_NS else "far" if nanoseconds < UNCLEAR_NS else "unclear"


def take_turn(row: Row, options: argparse.Namespace, signals: turn.Signals) -> None:
    path = pathlib.Path(row.runner.__file__)
    try:
        packages = environments.packages_of(path.stem, row.runner.PACKAGES, options.install)
        measured = turn.measure(path, row.runner.ROWS[row.name], row.runner.PRINTS, row.bytes, row.receivers, options.rounds,
                                bin_dir=options.bin_dir, packages=packages, state=lambda: ping(options.bin_dir), signals=signals)
        row.rounds += [dataclasses.asdict(each) for each in measured]
    except Failed as failure:
        row.failed = str(failure)


def measure(rows: list[Row], options: argparse.Namespace, signals: turn.Signals) -> None:
    for number in range(options.turns):
        for row in rows:
            if not row.failed:
                say(f"{row.bytes / 1e6:.0f} MB to {row.receivers}, turn {number + 1}/{options.turns}: {row.name}")
                take_turn(row, options, signals)
    say("")


def say(what: str) -> None:
    """To who watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


def printed(rows: list[Row]) -> str:
    lines = [f"{rows[0].bytes / 1e6:.0f} MB to {rows[0].receivers} receiver{'s' * (rows[0].receivers > 1)}, medians, GB/s\n",
             "| way | machine | rounds | bare | hashed | hashed, ms | Lorry over it |", "|---|---|---|---|---|---|---|"]
    reference = next((row for row in rows if row.name == REFERENCE and not row.failed), None)
    for row in rows:
        if row.failed:
            lines.append(f"| {row.name} | failed: {' '.join(row.failed.split())[:200].replace('|', '/')} | | | | | |")
            continue
        for state in sorted({r["state"] for r in row.rounds}):
            count = sum(r["state"] == state for r in row.rounds)
            bare, hashed = row.gigabytes("bare", state), row.gigabytes("hashed", state)
            lorry = reference.gigabytes("hashed", state) if reference else None
            ratio = lorry / (hashed or bare) if lorry else None
            ms = row.bytes * row.receivers / hashed / 1e6 if hashed else None
            cells = [f"{value:.3g}" if value and value < 1000 else f"{value or 0:.0f}" * bool(value) for value in (bare, hashed, ms, ratio)]
            lines.append(f"| {row.name} | {state} | {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser.add_argument("bin_dir", help="where transfer_bench is")
    parser.add_argument("--sizes", type=numbers, default=[1, 200], help="MB, separated by commas")
    parser.add_argument("--receivers", type=numbers, default=[1, 4])
    parser.add_argument("--large", action="store_true", help=f"also {LARGE_MB} MB to one receiver")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help="of each turn")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help="files of runners/, without .py")
    parser.add_argument("--runners", type=pathlib.Path, default=HERE / "runners", help="the folder of the runners")
    parser.add_argument("--install", action="store_true", help="install what peers need, from PyPI into .venv/peers")
    parser.add_argument("--json", type=pathlib.Path, help="a file for every round")
    return parser.parse_args()


def main() -> int:
    options = asked()
    options.bin_dir = str(pathlib.Path(options.bin_dir).resolve())
    signals = turn.Signals()
    turn.adopt_orphans()
    try:
        return print_tables(options, signals)
    except turn.Stopped:
        return 128 + signals.number()


def print_tables(options: argparse.Namespace, signals: turn.Signals) -> int:
    jobs = [(megabytes * 1_000_000, count) for megabytes in options.sizes for count in options.receivers]
    rows: list[Row] = []
    for size, receivers in jobs + [(LARGE_MB * 1_000_000, 1)] * options.large:
        some = rows_of(options.runners, size, receivers, options.only)
        measure(some, options, signals)
        print(printed(some), flush=True)
        rows += some
        if options.json:
            options.json.write_text(json.dumps({"load": os.getloadavg()[0], "rows": [row.json() for row in rows]}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
