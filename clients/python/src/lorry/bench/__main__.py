"""``python -m lorry.bench DIR --engine URL``: three ways to bring an adapter to one engine, each from the trainer's memory to the first
token by it. `lorry bench-sync` runs it."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import lorry
from lorry.bench.engine import Failed, Generated, Server, find
from lorry.bench.merged import Merged
from lorry.bench.report import Result, Row

_NAME = "lorry-bench-sync"
_WEIGHTS = "adapter_model.safetensors"
_ATTACH_S = 60.0
_RATE_ROUNDS = 3
# Low bits of so many elements tell the rounds' adapters apart, so that each has bytes of its own and none is taken for known.
_BITS = 16


def main(words: list[str] | None = None) -> int:
    options = _parser().parse_args(words)
    try:
        result = _measure(options, _Progress())
    except (Failed, lorry.LorryError, OSError, ValueError, KeyError) as error:
        said = _told(error)
        remedy = f"\n  → {said['remedy']}" if said["remedy"] else ""
        print(json.dumps(said) if options.json else f"lorry: {said['reason']}: {said['message']}{remedy}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(json.dumps(result.to_json()) if options.json else result.to_text())
    return 0


def _told(error: Exception) -> dict[str, str]:
    """As other commands of `lorry` report it."""
    if isinstance(error, Failed):
        return {"reason": "BENCH_FAILED", "message": str(error), "remedy": error.remedy}
    if isinstance(error, lorry.LorryError):
        if error.code == "UNAVAILABLE" and not error.reason:  # gRPC's own words of addresses, which are none of the user's
            return {"reason": "BENCH_FAILED", "message": "a service that was started for the measurement does not answer any more",
                    "remedy": "run it again; where that does not help, `lorry up` with the same engine keeps the services' logs"}
        return {"reason": error.reason or "BENCH_FAILED", "message": error.message, "remedy": ""}
    if isinstance(error, OSError) and error.filename is not None:
        return {"reason": "BENCH_FAILED", "message": f"{error.filename}: {error.strerror}",
                "remedy": f"name a directory that has {_WEIGHTS} beside adapter_config.json, and others that can be read and written here"}
    return {"reason": "BENCH_FAILED", "message": f"{type(error).__name__}: {error}",
            "remedy": f"see whether {_WEIGHTS} and adapter_config.json are whole"}


def _parser() -> argparse.ArgumentParser:
    """`lorry help bench-sync` explains these."""
    parser = argparse.ArgumentParser("lorry bench-sync")
    parser.add_argument("adapter", type=pathlib.Path)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--base-model", type=pathlib.Path)
    parser.add_argument("--shared-dir", type=pathlib.Path)
    parser.add_argument("--rounds", type=_count, default=5)
    parser.add_argument("--tokens", type=_count, default=64)
    parser.add_argument("--requests", type=_count, default=8)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds of one step")
    parser.add_argument("--program", help="the lorry command")
    parser.add_argument("--json", action="store_true")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError("write a number from 1 to 10000")
    return int(text)


class _Progress:
    """On stderr: one line that is redrawn on a terminal, else a line a step."""

    def say(self, text: str) -> None:
        end = "" if sys.stderr.isatty() else "\n"
        print(f"\r\033[K{text}" if sys.stderr.isatty() else text, end=end, file=sys.stderr, flush=True)

    def done(self) -> None:
        if sys.stderr.isatty():
            self.say("")


def _measure(options: argparse.Namespace, progress: _Progress) -> Result:
    adapter = options.adapter
    size = (adapter / _WEIGHTS).stat().st_size
    engine = find(options.engine, options.timeout)
    rows = [Row("lorry", size), Row("file", size)]
    result = Result(f"{engine.kind} {engine.version} at {engine.url}", f"adapter {adapter}", rows)
    before = engine.adapters()
    with tempfile.TemporaryDirectory(prefix="lorry-bench-") as scratch, \
            tempfile.TemporaryDirectory(prefix="lorry-bench-", dir=options.shared_dir) as shared:
        folder, target = pathlib.Path(scratch), pathlib.Path(shared)
        try:
            adapter_says = _adapters(options, engine, folder, target, result, progress)
        finally:  # before the directories go: engines read them again where they evicted an adapter
            for name in engine.adapters() - before:
                engine.unload(name)
        if options.base_model is not None:
            rows.append(Row("merged"))
            _merged(options, engine, target, result, adapter_says, progress)
    progress.done()
    return result


def _adapters(options: argparse.Namespace, engine: Server, folder: pathlib.Path, target: pathlib.Path, result: Result,
              progress: _Progress) -> Generated:
    """Both ways to sync the adapter, round by round; then what it costs while tokens are generated. Returns what the adapter says."""
    through, by_file = result.rows
    base = options.base_model / "config.json" if options.base_model else None
    progress.say("starting a store, an orchestrator and a door in front of the engine")
    with lorry.local([engine.url], data_dir=folder / "fleet", base_model_config=base, program=options.program) as fleet:
        _await_ready(fleet)
        door = Server(engine.kind, "", next(iter(fleet.doors.values())), engine.base, options.timeout)
        with lorry.open_run(_NAME, **fleet.addresses()) as run:
            for number in range(1, options.rounds + 2):
                source = _distinct(options.adapter, folder / f"v{number}", number)
                _fill(by_file, functools.partial(_file_s, engine, source, target / f"v{number}", number))
                _fill(through, functools.partial(_lorry_s, run, door, source, number, options.timeout))
                shutil.rmtree(source)
                progress.say(f"adapter, round {number - 1} of {options.rounds}: " + ", ".join(
                    f"{row.path} {row.failed or f'{row.seconds[-1]:.3f} s'}" for row in (through, by_file)))
    for row in (through, by_file):
        row.seconds = row.seconds[1:]  # the first one makes connections, and warms kernels up
    source = _distinct(options.adapter, target / "rate", 0)
    engine.load(f"{_NAME}-rate", source)
    rates: dict[str | None, list[float]] = {f"{_NAME}-rate": [], None: []}
    for number in range(_RATE_ROUNDS + 1):
        for name, seen in rates.items():
            progress.say(f"generation, round {number} of {_RATE_ROUNDS}, by {'the adapter' if name else 'the base model'}")
            seen.append(engine.tokens_a_second(name, options.tokens, options.requests))
    result.adapter_rate, result.base_rate = (statistics.median(seen[1:]) for seen in rates.values())
    return engine.generate(f"{_NAME}-rate", options.tokens)


def _lorry_s(run: lorry.Run, door: Server, source: pathlib.Path, number: int, timeout_s: float) -> float:
    began = time.perf_counter()
    run.publish(source, version=number).wait("serving", timeout_s)
    said = door.generate(_NAME, 1)
    took = time.perf_counter() - began
    if said.version != str(number):
        raise Failed(f"the door answered by version {said.version} after {number} was served")
    return took


def _file_s(engine: Server, source: pathlib.Path, target: pathlib.Path, number: int) -> float:
    """As trainers do that know the engine: a fresh directory and name for each version, and the one before it unloaded afterwards."""
    files = {file.name: file.read_bytes() for file in source.iterdir()}
    began = time.perf_counter()
    target.mkdir()
    for name, content in files.items():
        (target / name).write_bytes(content)
    engine.load(f"{_NAME}-v{number}", target)
    engine.generate(f"{_NAME}-v{number}", 1)
    took = time.perf_counter() - began
    engine.unload(f"{_NAME}-v{number}")
    shutil.rmtree(target)
    return took


def _fill(row: Row, measured: Callable[[], float]) -> None:
    """One round; a way that fails once is not tried again, and the others go on."""
    if not row.failed:
        try:
            row.seconds.append(measured())
        except (Failed, lorry.LorryError, TimeoutError) as error:
            row.seconds, row.failed = [], _told(error)["message"]


def _merged(options: argparse.Namespace, engine: Server, target: pathlib.Path, result: Result, adapter_says: Generated,
            progress: _Progress) -> None:
    row = result.rows[-1]
    parts: dict[str, list[float]] = {"merge": [], "write": [], "engine": [], "unmerge": []}
    try:
        progress.say(f"reading {options.base_model}")
        model = Merged(options.base_model, options.adapter)
        row.bytes = model.bytes
        base_says = engine.generate(None, options.tokens)
        try:
            for number in range(options.rounds + 1):
                steps: dict[str, Callable[[], object]] = {
                    "merge": model.merge, "write": functools.partial(model.save, target / "merged"),
                    "engine": functools.partial(_load_and_ask, engine, target / "merged"), "unmerge": model.unmerge}
                progress.say(f"merged weights, round {number} of {options.rounds}")
                for name, step in steps.items():
                    began = time.perf_counter()
                    step()
                    parts[name].append(time.perf_counter() - began)
            result.merged_gap = _gap(engine.generate(None, options.tokens), adapter_says)
        finally:
            progress.say(f"loading {options.base_model} into the engine again")
            engine.load_base(options.base_model)
        if engine.generate(None, options.tokens).tokens != base_says.tokens:
            raise Failed(f"with {options.base_model} loaded again the engine answers otherwise than before: is it the model that it was "
                         "started with? Start it again")
    except Failed as error:
        row.failed = str(error)
        return
    row.seconds = [sum(of_round) for of_round in zip(*parts.values(), strict=True)][1:]
    row.parts = {name: statistics.median(took[1:]) for name, took in parts.items()}


def _load_and_ask(engine: Server, checkpoint: pathlib.Path) -> None:
    engine.load_base(checkpoint)
    engine.generate(None, 1)


def _gap(one: Generated, other: Generated) -> float | None:
    pairs = zip(one.tokens, other.tokens, one.logprobs, other.logprobs, strict=True)
    same = [abs(a - b) for _, _, a, b in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return max(same, default=None)


def _await_ready(fleet: lorry.Fleet) -> None:
    ends_at = time.monotonic() + _ATTACH_S
    with lorry.Admin(**fleet.addresses()) as admin:
        while True:
            member: dict[str, Any] = next(iter(admin.status().get("members", [])), {})
            why = str(member.get("observed", {}).get("health_detail", ""))
            if member.get("state") == "READY":
                return
            if why.startswith("ENGINE_") or time.monotonic() > ends_at:
                raise Failed(f"the engine cannot take adapters: {why or member.get('state', 'its door did not attach')}")
            time.sleep(0.1)


def _distinct(adapter: pathlib.Path, target: pathlib.Path, number: int) -> pathlib.Path:
    """A copy whose first weights differ in their lowest bits from those of other numbers."""
    shutil.copytree(adapter, target)
    raw = bytearray((target / _WEIGHTS).read_bytes())
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + length])
    first = min((entry for name, entry in header.items() if name != "__metadata__"), key=lambda entry: entry["data_offsets"][0])
    begin, end = first["data_offsets"]
    count = 1
    for extent in first["shape"]:
        count *= extent
    width = (end - begin) // count
    for i in range(min(_BITS, count)):
        raw[8 + length + begin + i * width] ^= number >> i & 1
    (target / _WEIGHTS).write_bytes(raw)
    return target


if __name__ == "__main__":
    sys.exit(main())
