"""The mutants of a build, what is known of each, and what people have written about some of them."""

import dataclasses
import fnmatch
import json
import os
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

KILLED, SURVIVED, NOT_REACHED, EQUIVALENT = "killed", "survived", "not reached", "equivalent"


@dataclasses.dataclass(frozen=True)
class Mutant:
    number: int
    key: str  # stays while its line and its function's name do
    file: str
    line: int
    text: str  # of that line
    function: str
    mutation: str

    @property
    def short(self) -> str:
        return shorten(self.mutation)


@dataclasses.dataclass
class Verdict:
    what: str
    by: str = ""  # the judge that killed it
    detail: str = ""
    seeds: int = 0  # how many the simulator ran until then
    judged: str = ""  # which build of the judges said so


def shorten(mutation: str) -> str:
    """Long expressions by their beginning, as reports and lists name them: the last part says what is done."""
    limit = 70  # columns of one side of the arrow
    left, arrow, right = mutation.partition(" -> ")
    cut = [part if len(part) <= limit else part[:limit - 1] + "…" for part in (left, right)]
    return cut[0] + arrow + cut[1]


def judges_of(path: str) -> list[str]:
    """The judges that tools/mutants/sources.txt names for a source."""
    for pattern, *names in _lines(HERE / "sources.txt"):
        if pathlib.PurePosixPath(path).match(pattern):
            return names
    return []


def load(build: pathlib.Path, patterns: list[str]) -> list[Mutant]:
    """Every mutant of the build whose file fits one of the patterns; all where none is given."""
    mutants = []
    for path in sorted((build / "mutated").rglob("*.json")):
        source = str(path.relative_to(build / "mutated").with_suffix(""))
        wanted = not patterns or any(fnmatch.fnmatch(source, pattern) for pattern in patterns)
        if wanted and (ROOT / source).is_file():  # else the copy outlived its source
            mutants += [Mutant(**entry) for entry in json.loads(path.read_text())]
    return mutants


class Notes:
    """A list in the tree of mutants with a sentence on each: `file | line's text | mutation | sentence`. "…" stands for anything."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.entries = [(file, _pattern(text), _pattern(mutation), sentence) for file, text, mutation, sentence in _notes(path)]
        self.used: set[int] = set()

    def on(self, mutant: Mutant) -> str | None:
        found = None
        for index, (file, text, mutation, sentence) in enumerate(self.entries):
            if file == mutant.file and text.fullmatch(mutant.text) and mutation.fullmatch(mutant.mutation):
                self.used.add(index)
                found = found or sentence
        return found

    def unused(self, files: set[str]) -> list[str]:
        """Entries on those files that no mutant answers to any more."""
        return [f"{entry[0]}: {entry[3]}" for index, entry in enumerate(self.entries) if entry[0] in files and index not in self.used]


class Results:
    """The verdicts so far, in the build folder, so that a run that was stopped goes on."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.verdicts: dict[str, Verdict] = {}
        if path.is_file():
            self.verdicts = {key: Verdict(**entry) for key, entry in json.loads(path.read_text()).items()}

    def of(self, mutant: Mutant, judged: str) -> Verdict | None:
        """A kill holds while the line stays. That nobody noticed holds only for the same judges on the same program."""
        verdict = self.verdicts.get(mutant.key)
        return verdict if verdict and (verdict.what == KILLED or verdict.judged == judged) else None

    def put(self, mutant: Mutant, verdict: Verdict) -> None:
        self.verdicts[mutant.key] = verdict

    def save(self) -> None:
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps({key: dataclasses.asdict(verdict) for key, verdict in self.verdicts.items()}, indent=0))
        os.replace(written, self.path)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in text.split("…")))


def _lines(path: pathlib.Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines() if line and not line.startswith("#")]


def _notes(path: pathlib.Path) -> list[list[str]]:
    """Fields are split at " | ", which C++ of this tree has nowhere on a line with a mutant, `||` being longer."""
    notes = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split(" | ")]
        if len(fields) != 4 or not all(fields):
            raise SystemExit(f"{path}:{number}: not four fields with ' | ' between them: file, line's text, mutation, sentence")
        notes.append(fields)
    return notes
