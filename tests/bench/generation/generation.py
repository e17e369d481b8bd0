"""usage: generation.py BIN_DIR [--engines real] [--kind vllm] [--turns 5] [--seconds 8] [--period 1.0]: what a sync a second costs.

Clients keep one SGLang and one vLLM, or the engine of one kind, busy through their doors. In turns of one run nothing is
published, Lorry publishes a version a second, and the engines are told to load a version a second by their own calls, use it
once and unload the one before, without Lorry. The first against the second is what a sync costs; the second against the third
is Lorry's part of it, the rest is the engine's own. Tokens count where they were generated: an answer's are spread evenly from its request to its end.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import pathlib
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "fakes"), str(ROOT / "tests" / "chaos"), str(ROOT / "clients" / "python" / "src")]

from adapters import Adapters  # noqa: E402
from testing import engines  # noqa: E402
from testing.doors import DEADLINE_S, Answer  # noqa: E402
from testing.engine_api import EngineApi  # noqa: E402
from testing.waiting import moment  # noqa: E402
from testing.workers import Workers  # noqa: E402
from testing.world import ADAPTER, World  # noqa: E402

# Of each door at a time; a batch that both kinds run at once.
CLIENTS = 6
TOKENS = 32
# A fake's pace of a token, slow enough that what it costs to count them is nothing.
TOKEN_DELAY_S = 0.02
# What a change of turns leaves behind is over by then.
SETTLE_S = 1.0
NOTHING, LORRY, ENGINE = "nothing published", "published through Lorry", "loaded by the engine's own calls"


class Busy(Workers):
    """Clients without pause; `rate(begin, end)` is the tokens a second of that time."""

    def __init__(self, world: World, clients: int = CLIENTS) -> None:
        """`clients` of each door at a time."""
        self.answers: list[tuple[Answer, float]] = []
        self.late = 0
        self._doors = list(world.doors.values())
        super().__init__(*(lambda d=d: self._work(d) for d in self._doors for _ in range(clients)), join_s=DEADLINE_S + 60.0)

    def _work(self, door) -> None:
        while not self._stop.is_set():
            try:
                answer = door.ask(ADAPTER, tokens=TOKENS)
            except TimeoutError:  # of an engine that others keep from the processor
                self.late += 1
                continue
            assert answer.status == 200, f"{answer.status} {answer.reason} {answer.message}"
            self.answers.append((answer, time.monotonic()))

    def rate(self, begin: float, end: float) -> float:
        tokens = 0.0
        for answer, ended in self.answers:
            shared = min(ended, end) - max(answer.asked_at, begin)
            if shared > 0:
                tokens += len(answer.tokens) * shared / (ended - answer.asked_at)
        return tokens / (end - begin)


@contextlib.contextmanager
def each(period_s: float, act: Callable[[], None]) -> Iterator[list[float]]:
    """Calls `act` again and again, a period from one begin to the next; the list grows by what each call took."""
    took: list[float] = []
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            began = time.monotonic()
            act()
            took.append(time.monotonic() - began)
            stop.wait(max(0.0, began + period_s - time.monotonic()))

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        done = pool.submit(loop)
        try:
            yield took
        finally:
            stop.set()
            done.result()


def bare_loads(world: World, adapters: Adapters) -> Callable[[], None]:
    """One more version on each engine, by its own call, a token of it, which is when an engine takes it into its batches, and the
    one before it gone."""
    numbers = itertools.count(1)
    apis = [EngineApi(engine) for engine in world.engines.values()]

    def load() -> None:
        number, folder = next(numbers), adapters.next()
        for api in apis:
            reply = api.load(f"bare-{number}", folder)
            assert reply.status == 200, reply.message
            assert api.generate(f"bare-{number}", tokens=1).status == 200
            if number > 1:
                api.unload(f"bare-{number - 1}")

    return load


def main() -> int:
    parser = argparse.ArgumentParser(prog="generation.py", description="what a sync a second costs generation")
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--engines", choices=("fake", "real"), default="fake")
    parser.add_argument("--kind", choices=engines.KINDS, action="append", help="of engine, where not both")
    parser.add_argument("--turns", type=int, default=5, help="of each kind (5)")
    parser.add_argument("--seconds", type=float, default=8.0, help="a turn (8)")
    parser.add_argument("--period", type=float, default=1.0, help="seconds from one version to the next (1)")
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lorry-generation-"))
    tiny = engines.tiny_model()
    more = {"switches": {"token_delay_s": TOKEN_DELAY_S}} if args.engines == "fake" else {}
    make = engines.fake if args.engines == "fake" else engines.real
    pair = [make(kind, tiny / "model", log_dir=folder, args=engines.SLOT_ARGS[kind], **more) for kind in args.kind or engines.KINDS]
    rates: dict[str, list[float]] = {NOTHING: [], LORRY: [], ENGINE: []}
    took: dict[str, list[float]] = {LORRY: [], ENGINE: []}
    try:
        with World(args.bin_dir, folder, *pair) as world, world.open_run() as run:
            adapters = Adapters(folder, tiny / "adapters" / "v1", seed=1)
            numbers = itertools.count(1)

            def publish() -> None:
                run.publish(adapters.next(), version=next(numbers)).wait("serving", 120)

            publish()
            acts = {LORRY: publish, ENGINE: bare_loads(world, adapters)}
            with Busy(world) as busy:
                for turn in itertools.islice(itertools.cycle((NOTHING, LORRY, NOTHING, ENGINE)), 4 * args.turns):
                    with each(args.period, acts[turn]) if turn in acts else contextlib.nullcontext([]) as spent:
                        moment(SETTLE_S)
                        began = time.monotonic()
                        moment(args.seconds)
                        ended = time.monotonic()
                    moment(SETTLE_S)
                    rates[turn].append(busy.rate(began, ended))
                    if turn in took:
                        took[turn] += spent
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    quiet = statistics.median(rates[NOTHING])
    print(f"generation, {args.engines} {' and '.join(args.kind or engines.KINDS)}, {CLIENTS} clients a door, a version each {args.period:g} s; medians of {args.turns} turns of {args.seconds:g} s")
    for turn, found in rates.items():
        each_took = f", {1000 * statistics.median(took[turn]):7.0f} ms a version, {len(took[turn])} of them" if took.get(turn) else ""
        print(f"  {turn:34} {statistics.median(found):8.0f} tokens/s  {statistics.median(found) / quiet:.3f}{each_took}")
    print(f"  Lorry's part, beside the engine's own load: {statistics.median(rates[LORRY]) / statistics.median(rates[ENGINE]):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
