"""usage: publish.py BIN_DIR [ROUNDS]: what publishing 200 MB from Python costs, from the call to two proxies that have the files.

Each round, one after the other: one copy of the bytes into a file on the store's disk and its fsync, which nothing durable goes
below; what frameworks do without Lorry, a safetensors file in memory that each of two engines reads and hashes; a publish that Python
sends itself; a publish that `lorry mover` sends. Loads are held until both proxies have the version, so that nothing but its way is
measured; each publish comes three seconds after the one before, as after a training step. CPU is the trainer's own. The first round is not counted. Prints medians, and ratios to the rows of the same run.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import xxhash
from safetensors.numpy import save_file

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parents[2])]
from transfer.end_to_end import Rounds, adapter, fleet

ENGINES = 2
STEP_S = 3.0
Row = dict[str, float]


def copy_and_fsync(image: bytes, folder: pathlib.Path, number: int) -> Row:
    """The copies stay, as versions do: what is written over a file that is gone lands in memory that is warm."""
    path = folder / f"copy-{number}"
    began = time.monotonic()
    with path.open("wb", buffering=0) as file:
        file.write(image)
        os.fsync(file.fileno())
    return {"stored": time.monotonic() - began}


def file_and_reads(state: dict, folder: pathlib.Path) -> Row:
    """`folder` is in memory. The call that tells an engine of the path is left out: it takes a millisecond."""
    path = folder / "adapter_model.safetensors"
    began = time.monotonic()
    save_file(state, path)
    written = time.monotonic() - began
    for _ in range(ENGINES):
        xxhash.xxh3_128_digest(path.read_bytes())
    took = time.monotonic() - began
    path.unlink()
    return {"laid out": written, "fetched": took}


def published(rounds: Rounds) -> Row:
    time.sleep(STEP_S)  # tidy: allow sleep: the training step, in which the store makes ready for the next version
    cpu = time.process_time()
    took = rounds.next()
    return {"laid out": took.laid_out, "stored": took.stored, "fetched": took.fetched, "CPU": time.process_time() - cpu}


def rounds_with(world, name: str, mover: str) -> Rounds:
    os.environ["LORRY_MOVER"] = mover
    return Rounds(world, name)


def measure(bin_dir: str, count: int) -> dict[str, list[Row]]:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lorry-bench-"))
    shared = pathlib.Path(tempfile.mkdtemp(prefix="lorry-bench-", dir="/dev/shm"))
    rows: dict[str, list[Row]] = {}
    try:
        with fleet(bin_dir, folder, "by-python", "by-mover") as world:
            state, _ = adapter()
            image = b"".join(t.tobytes() for t in state.values())
            by_python, by_mover = rounds_with(world, "by-python", "off"), rounds_with(world, "by-mover", str(pathlib.Path(bin_dir) / "lorry"))
            ways: dict[str, Callable[[int], Row]] = {
                "one copy to disk and its fsync": lambda number: copy_and_fsync(image, folder, number),
                "a file in memory, two engines read it": lambda _: file_and_reads(state, shared),
                "publish, sent by Python": lambda _: published(by_python),
                "publish, sent by lorry mover": lambda _: published(by_mover),
            }
            for number in range(count + 1):
                for name, way in ways.items():
                    row = way(number)
                    if number > 0:
                        rows.setdefault(name, []).append(row)
                    print(f"\r{number}/{count} {name:40}", end="", file=sys.stderr)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(shared, ignore_errors=True)
    print(file=sys.stderr)
    return rows


def main() -> None:
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    rows = measure(sys.argv[1], count)
    print(f"\n200 MB in 448 tensors, medians of {count} rounds, ms; load {os.getloadavg()[0]:.1f}\n")
    print("| way | laid out | stored | at two proxies | CPU of the trainer |\n|---|---|---|---|---|")
    median = {way: {key: statistics.median(r[key] for r in each) for key in each[0]} for way, each in rows.items()}
    for way, row in median.items():
        print(f"| {way} |" + "".join(f" {row[key] * 1e3:.0f} |" if key in row else " |" for key in ("laid out", "stored", "fetched", "CPU")))
    copy, file, _, mover = median.values()
    print(f"\nstored, mover / one copy and fsync: {mover['stored'] / copy['stored']:.2f} (bar: 3 at most, to where engines can open it)")
    print(f"at two proxies, mover / one copy and fsync: {mover['fetched'] / copy['stored']:.2f}")
    print(f"at two proxies, file and reads / mover: {file['fetched'] / mover['fetched']:.2f} (bar: 3 at least)")


if __name__ == "__main__":
    main()
