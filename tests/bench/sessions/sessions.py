"""usage: sessions.py BIN_DIR [SESSIONS [ADAPTERS [SECONDS]]]: a publish a second to many sessions, by the programs themselves.

A real adapter-store and sync-orchestrator with their databases on disk, and processes that attach as proxies do but have no
engine (session_crowd). One adapter publishes each second, the others are served and do nothing. Prints, for each part of the
time, the milliseconds from a publish that the store has accepted until every session serves it, and the CPU that the
orchestrator took: where they grow, a backlog does. Ends with 1 when a version was not served, or the last part took twice as
long as the first.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import lorry
import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))
from testing.fleet import Fleet
from testing.waiting import moment, until

CROWDS = 4
PERIOD_S = 1.0
PARTS = 4
# What a version may take before it counts as lost.
DEADLINE_S = 60.0


def adapter() -> tuple[dict[str, np.ndarray], dict]:
    """(state dict, config)"""
    state = {
        f"base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight": np.full(shape, 0.5, dtype=np.float32)
        for side, shape in (("A", (8, 64)), ("B", (64, 8)))
    }
    return state, {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}


class Publisher:
    """Version after version of one adapter that differs in one number."""

    def __init__(self, name: str, addresses: dict[str, str]) -> None:
        self._run = lorry.open_run(name, **addresses)
        self._state, self._config = adapter()
        self._number = 0

    def publish(self) -> lorry.PublishHandle:
        self._number += 1
        tensor = next(iter(self._state.values()))
        tensor[0, 0] = self._number
        handle = self._run.publish(self._state, config=self._config, version=self._number, progress=False)
        handle.wait("stored", DEADLINE_S)
        return handle


@contextlib.contextmanager
def crowd(bins: pathlib.Path, fleet: Fleet, folder: pathlib.Path, first: int, count: int, **options: Any) -> Iterator[subprocess.Popen]:
    """A process with so many sessions, ended with the block."""
    command = [bins / "session_crowd", fleet.addresses()["orchestrator"], str(first), str(count), folder]
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def wait_ready(admin: lorry.Admin, sessions: int) -> None:
    until(lambda: sum(m["state"] == "READY" for m in admin.status().get("members", [])) == sessions, "all sessions are READY")


def cpu_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def serving_ms(handle: lorry.PublishHandle, since: float) -> float | None:
    """None when a newer version was decided instead."""
    try:
        handle.wait("serving", DEADLINE_S)
    except lorry.Superseded:
        return None
    return (time.monotonic() - since) * 1e3


def run(fleet: Fleet, adapters: int, seconds: int) -> bool:
    publishers = [Publisher(f"adapter-{i}", fleet.addresses()) for i in range(adapters)]
    for publisher in publishers:
        publisher.publish().wait("serving", DEADLINE_S)
    pid = fleet.orchestrator.pid
    pending, parts, good = [], [], True
    with concurrent.futures.ThreadPoolExecutor(max_workers=64) as waiters:
        began = time.monotonic()
        marks = [(0.0, cpu_seconds(pid))]
        for second in range(seconds):
            moment(max(0.0, began + second * PERIOD_S - time.monotonic()))
            at = time.monotonic()
            pending.append(waiters.submit(serving_ms, publishers[0].publish(), at))
            if (second + 1) % max(1, seconds // PARTS) == 0:
                marks.append((time.monotonic() - began, cpu_seconds(pid)))
                parts.append(pending)
                pending = []
        for i, part in enumerate(parts):
            results = [future.result() for future in part]
            served = sorted(ms for ms in results if ms is not None)
            good = good and bool(served)
            cpu = (marks[i + 1][1] - marks[i][1]) / (marks[i + 1][0] - marks[i][0])
            print(f"  {marks[i + 1][0]:5.0f} s  served {len(served)} of {len(results)}, median {statistics.median(served):5.0f} ms, "
                  f"worst {served[-1]:5.0f} ms; orchestrator {cpu * 100:3.0f} % of a core, {resident_mb(pid):.0f} MB", flush=True)
            parts[i] = statistics.median(served)
    return good and parts[-1] < 2 * parts[0]


def main() -> int:
    given = sys.argv[2:5]
    sessions, adapters, seconds = (int(number) for number in given + ["1000", "10", "120"][len(given) :])
    bins, each = pathlib.Path(sys.argv[1]), sessions // CROWDS
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lorry-bench-"))
    try:
        with Fleet(bins, folder, {}) as fleet, contextlib.ExitStack() as ends, lorry.Admin(**fleet.addresses()) as admin:
            for i in range(CROWDS):
                ends.enter_context(crowd(bins, fleet, folder, i * each, each, stdout=subprocess.DEVNULL))
            wait_ready(admin, each * CROWDS)
            print(f"{each * CROWDS} sessions from {CROWDS} processes, {adapters} adapters, a publish a second, load {os.getloadavg()[0]:.1f}", flush=True)
            return 0 if run(fleet, adapters, seconds) else 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
