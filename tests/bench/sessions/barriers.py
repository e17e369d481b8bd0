"""usage: barriers.py BIN_DIR [DOORS [SYNCS]]: for how long a barrier shuts many doors, by the programs themselves.

A real adapter-store and sync-orchestrator with their databases on disk, and DOORS (64) sessions that meet a barrier as
proxies do, writes to the disk included, with nothing in flight (session_crowd). Prints, over SYNCS (30) versions, for how
long the door that was shut longest and the median door admitted nothing; beside it what one write to this disk takes, since
three of them follow each other. Ends with 1 when half of the barriers shut a door for more than 50 ms.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import lorry

from sessions import CROWDS, DEADLINE_S, Publisher, crowd, wait_ready
from testing.fleet import Fleet

ADAPTER = "adapter-0"
BAR_MS = 50.0


def write_ms(folder: pathlib.Path) -> float:
    """The median of a small write that waits for the disk."""
    took = []
    with (folder / "probe").open("wb", buffering=0) as file:
        for _ in range(50):
            began = time.monotonic()
            file.write(bytes(500))
            os.fsync(file.fileno())
            took.append((time.monotonic() - began) * 1e3)
    return statistics.median(took)


class Doors:
    """What the crowds print: by epoch, for how many milliseconds each door was shut."""

    def __init__(self) -> None:
        self.shut: dict[int, list[float]] = collections.defaultdict(list)
        self._lock = threading.Lock()

    def read(self, crowd: subprocess.Popen) -> None:
        for line in crowd.stdout:
            epoch, ms = line.split()
            with self._lock:
                self.shut[int(epoch)].append(float(ms))


def main() -> int:
    given = sys.argv[2:4]
    doors, syncs = (int(number) for number in given + ["64", "30"][len(given) :])
    bins, each = pathlib.Path(sys.argv[1]), doors // CROWDS
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lorry-bench-"))
    seen, readers = Doors(), []
    try:
        with Fleet(bins, folder, {}) as fleet, contextlib.ExitStack() as ends, lorry.Admin(**fleet.addresses()) as admin:
            admin.create(ADAPTER, {"mode": "barrier"})
            for i in range(CROWDS):
                process = ends.enter_context(crowd(bins, fleet, folder, i * each, each, stdout=subprocess.PIPE, text=True))
                reader = threading.Thread(target=seen.read, args=(process,), daemon=True)
                reader.start()
                readers.append(reader)
            wait_ready(admin, each * CROWDS)
            disk = write_ms(folder)
            publisher = Publisher(ADAPTER, fleet.addresses())
            for _ in range(syncs + 1):  # the first opens rows that were closed: none is shut
                publisher.publish().wait("serving", DEADLINE_S)
        for reader in readers:
            reader.join()
        whole = {epoch: ms for epoch, ms in seen.shut.items() if len(ms) == each * CROWDS}
        if len(whole) < syncs:
            print(f"barriers: {len(whole)} of {syncs} syncs shut all {doors} doors and opened them: {sorted((e, len(v)) for e, v in seen.shut.items())}")
            return 1
        worst = sorted(max(ms) for ms in whole.values())
        typical = statistics.median(statistics.median(ms) for ms in whole.values())
        print(f"{each * CROWDS} doors, {len(whole)} barriers, load {os.getloadavg()[0]:.1f}, a write {disk:.1f} ms: a door is shut for {typical:.1f} ms; "
              f"the longest of each barrier, median {statistics.median(worst):.1f} ms, worst {worst[-1]:.1f} ms (bar {BAR_MS:.0f} ms)")
        return 0 if statistics.median(worst) <= BAR_MS else 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
