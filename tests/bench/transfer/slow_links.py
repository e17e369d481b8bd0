"""usage: slow_links.py BIN_DIR [ROUNDS [MB_S]]: what reading ahead saves where trainer, store and engines are on different hosts.

200 MB go from a trainer to the store over one slow wire, and from the store to two proxies over another one each; the wires pass
MB_S (40) megabytes a second. Turns without reading ahead and with it follow each other in one run. Printed is the time from the
call of `publish` to both proxies having every byte, verified, beside what one wire takes for the bytes alone.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import statistics
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parents[2])]
from transfer.end_to_end import Round, Rounds, fleet
from transfer.wires import slow


def turns(bin_dir: str, read_ahead: bool, count: int, bytes_s: float) -> tuple[int, list[Round]]:
    """The image's bytes, and the rounds after a first one, in which the proxies learn what to follow."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lorry-bench-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)

        world = stack.enter_context(fleet(bin_dir, folder, "policy", prepare=slow(stack, bytes_s, **{"read-ahead": str(read_ahead).lower()})))
        rounds = Rounds(world, "policy")
        took = []
        for number in range(count + 1):
            took.append(rounds.next())
            print(f"\rread ahead: {'yes' if read_ahead else 'no':4} {number}/{count}", end="", file=sys.stderr)
        return rounds.image_bytes, took[1:]


def main() -> None:
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    bytes_s = (float(sys.argv[3]) if len(sys.argv) > 3 else 40) * 1e6
    median = {}
    for read_ahead in (False, True):
        size, took = turns(sys.argv[1], read_ahead, count, bytes_s)
        median[read_ahead] = {key: statistics.median(getattr(r, key) for r in took) for key in ("stored", "fetched")}
    wire = size / bytes_s
    print(f"\n\n{size / 1e6:.0f} MB over wires of {bytes_s / 1e6:.0f} MB/s, medians of {count} rounds, s; load {os.getloadavg()[0]:.1f}\n")
    print("| | stored | at two proxies | of one wire |\n|---|---|---|---|")
    for read_ahead, row in median.items():
        name = "read ahead" if read_ahead else "read once stored"
        print(f"| {name} | {row['stored']:.1f} | {row['fetched']:.1f} | {row['fetched'] / wire:.2f} |")


if __name__ == "__main__":
    main()
