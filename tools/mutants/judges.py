"""Who can notice a mutant: the simulator, over seeds, and the tests of a program. Each knows beforehand which of its runs
could: those that reach the mutant while what it computes differs from the original. The others are not run.
"""

import dataclasses
import hashlib
import os
import pathlib
import re
import resource
import subprocess
from collections.abc import Callable

from mutants import KILLED, Verdict

MEMORY_MAX = 4 << 30  # bytes of address space: what a mutant that appends for ever may take
NICE = 15  # people work on the same machine
CPU_FACTOR, CPU_EXTRA_S = 10, 2  # a run that takes so much more than without a mutant will not end
WALL_FACTOR, WALL_EXTRA_S = 5, 60  # over what it may compute: others use the processors meanwhile, and some runs wait
FIRST_RUN_S = 300  # of CPU, for a test case without a mutant
WORDS_MAX = 100_000  # bytes of a test filter: what Linux lets one argument be, with room


def file_hash(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def be_modest() -> None:
    """For this process and all that it starts."""
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _run(command: list[str], cwd: pathlib.Path, cpu_s: float, **environment: str) -> tuple[int, str]:
    """Exit status and output. What takes more CPU is ended by a signal, and what waits too long counts as ended by one."""
    limited = ["prlimit", f"--cpu={int(cpu_s) + 1}", *command]
    try:
        ended = subprocess.run(limited, cwd=cwd, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, timeout=WALL_FACTOR * cpu_s + WALL_EXTRA_S, check=False)
    except subprocess.TimeoutExpired:
        return -1, "does not end"
    return ended.returncode, ended.stdout.decode(errors="replace")


class Simulator:
    """`mutant_seeds`, over the first so many seeds."""

    name = "seeds"
    SLICES = 8  # of the seeds, when it is learnt what they reach: as many processes as there are jobs share them

    def __init__(self, build: pathlib.Path, cache: pathlib.Path, seeds: int, share: Callable):
        self.program = build / "bin" / "mutant_seeds"
        self.build = build
        self.stamp = f"{file_hash(self.program)}-{seeds}"
        slices = [(1 + seeds * part // self.SLICES, seeds * (part + 1) // self.SLICES) for part in range(self.SLICES)]
        outputs = list(share(lambda part: self._reach(cache, *part), slices))
        self.seeds_of: dict[int, list[str]] = {}
        for path, _ in outputs:
            for line in path.read_text().splitlines():
                number, reaching = line.split()
                self.seeds_of.setdefault(int(number), []).append(reaching)
        said = "\n".join(text for _, text in outputs)
        self.failing = re.findall(r"^failing (\d+)", said, re.MULTILINE)
        slowest = max(int(found) for found in re.findall(r"^slowest_ms (\d+)", said, re.MULTILINE))
        self.limit_ms = CPU_FACTOR * slowest + 1000 * CPU_EXTRA_S

    def _reach(self, cache: pathlib.Path, first: int, last: int) -> tuple[pathlib.Path, str]:
        path = cache / f"seeds-{self.stamp}-{first}"
        said = path.with_suffix(".said")
        if not said.is_file():
            command = [str(self.program), "--reach", f"{first}..{last}", str(path)]
            ended = subprocess.run(command, capture_output=True, text=True, check=True)
            said.write_text(ended.stdout)
        return path, said.read_text()

    def reaches(self, number: int) -> bool:
        return number in self.seeds_of

    def judge(self, number: int) -> Verdict | None:
        run = 0
        for seeds in self.seeds_of.get(number, []):
            count = seeds.count(",") + 1
            status, text = _run([str(self.program), "--judge", seeds, str(self.limit_ms)], self.build, count * self.limit_ms / 1000,
                                LORRY_MUTANT=str(number))
            if status != 0:
                seed, _, why = text.partition("\n")[0].partition(" ")
                listed = seeds.split(",")
                run += listed.index(seed) + 1 if seed in listed else count
                return Verdict(KILLED, self.name, f"seed {seed}: {why[:200]}", run)
            run += count
        return None


@dataclasses.dataclass
class _Case:
    name: str
    cpu_s: float
    reached: set[int]


class Program:
    """A test program of GoogleTest, a case at a time."""

    def __init__(self, name: str, build: pathlib.Path, cache: pathlib.Path, share: Callable):
        self.name, self.build = name, build
        self.program = build / "bin" / f"{name}_test"
        self.stamp = file_hash(self.program)
        self.cache = cache
        listed = subprocess.run([str(self.program), "--gtest_list_tests"], cwd=build, capture_output=True, text=True, check=True).stdout
        self.failing: list[str] = []
        self.cases = [case for case in share(self._reach, _case_names(listed)) if case is not None]

    def _reach(self, case: str) -> _Case | None:
        path = self.cache / f"{self.name}-{self.stamp}-{hashlib.sha256(case.encode()).hexdigest()[:16]}"
        if not path.is_file():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            status, text = _run([str(self.program), f"--gtest_filter={case}"], self.build, FIRST_RUN_S, LORRY_MUTANTS_REACHED=f"{path}.new")
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if status != 0:
                self.failing.append(case)
                return None
            cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime  # at most: others may run beside it
            path.write_text(f"{cpu_s}\n{pathlib.Path(f'{path}.new').read_text()}")
        cpu_s, *numbers = path.read_text().split()
        return _Case(case, float(cpu_s), {int(number) for number in numbers})

    def reaches(self, number: int) -> bool:
        return any(number in case.reached for case in self.cases)

    def judge(self, number: int) -> Verdict | None:
        cases = [case for case in self.cases if number in case.reached]
        if not cases:
            return None
        names = ":".join(case.name for case in cases)
        cpu_s = sum(case.cpu_s for case in cases)
        status, text = _run([str(self.program), f"--gtest_filter={names if len(names) < WORDS_MAX else '*'}", "--gtest_fail_fast"],
                            self.build, CPU_FACTOR * cpu_s + CPU_EXTRA_S, LORRY_MUTANT=str(number))
        if status == 0:
            return None
        failed = re.search(r"^\[  FAILED  \] ([^\s,]+)", text, re.MULTILINE)
        begun = re.findall(r"^\[ RUN      \] (\S+)", text, re.MULTILINE)
        return Verdict(KILLED, self.name, failed.group(1) if failed else f"{begun[-1] if begun else ''} ended with {status}")


def _case_names(listed: str) -> list[str]:
    names, suite = [], ""
    for line in listed.splitlines():
        word = line.split("#")[0].rstrip()
        if word and not word.startswith(" "):
            suite = word
        elif word.strip() and not word.strip().startswith("DISABLED_"):
            names.append(suite + word.strip())
    return names
