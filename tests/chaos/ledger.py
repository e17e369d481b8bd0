"""What the campaign did and saw, as it happened: the judge reads nothing else.

Threads append; lists are append-only, so that a reader sees a prefix; what was published is read as a copy. Times are
time.monotonic(), which all processes of a machine share: engines write it into their journals.
"""

from __future__ import annotations

import json
import pathlib
import threading
import time
from dataclasses import dataclass, field

from engine_core import expected_tokens
from testing.faults import digest_of

PROMPTS = ([5, 17, 101, 33], [7, 7, 210], [400, 3, 90, 12, 64])
TOKENS_MAX = 24
# Tokens that an answer must have to be told from another: 512 ** 3 leave no room for chance.
TOKENS_MIN = 3

Version = tuple[int, int]  # run, number


@dataclass
class Published:
    """One version: what its trainer did with it, and how that ended."""

    adapter: str
    version: Version
    folder: pathlib.Path
    wrong: str  # as testing.faults marks it; empty: a good one
    began: float
    stored: float = 0.0  # when the store's acknowledgement came; 0: it never did
    ended: float = 0.0
    outcome: str = ""  # SERVING, SUPERSEDED, a reason of docs/ERRORS.md, TIMEOUT
    detail: str = ""
    digest: str = ""  # as the store names it

    @property
    def name(self) -> str:
        return f"{self.adapter} r{self.version[0]}.{self.version[1]}"


@dataclass
class Reply:
    """One request at one door. `sources`: whose bytes answered, of each choice; None: the base model, or nobody's."""

    door: str
    kind: str  # latest, stream, many, explicit, alias; bound: by a name that a framework gave
    adapter: str
    asked: str
    sent: float
    received: float = 0.0
    status: int = 0  # 0: it broke off
    reason: str = ""
    announced: Version = (0, 0)
    epoch: int = 0
    digest: str = ""
    sources: list[Version | None] = field(default_factory=list)


@dataclass
class Fault:
    """From its strike to the moment when every door served what it should again."""

    kind: str
    touches: frozenset[str]  # members whose doors may break off or refuse meanwhile
    struck: float
    healed: float = 0.0
    recovered: float = 0.0
    detail: str = ""


@dataclass
class Bind:
    """A framework gives a name at its door to bytes; `number` counts them at that door, and stands for a version in replies."""

    door: str
    name: str
    number: int
    began: float
    done: float = 0.0  # when it was told so; 0: it never was


@dataclass
class Hold:
    """From the first call of a framework's step to its last: its engine pauses or sleeps meanwhile."""

    door: str
    began: float
    ended: float = float("inf")


@dataclass
class Call:
    """One of a framework's, in a step that began then; 0: it mends what had failed before."""

    door: str
    verb: str
    step_began: float
    received: float = 0.0
    status: int = 0
    detail: str = ""


@dataclass
class Violation:
    at: float
    what: str


def list_or_text(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset) else str(value)


@dataclass
class Rollback:
    """An operator pins a version of the adapter, and lifts the pin: a door may go back to it at any moment in between."""

    adapter: str
    began: float
    ended: float = float("inf")


class Ledger:
    def __init__(self) -> None:
        self.began = time.monotonic()
        self.served = 0.0  # when every door had served each adapter for the first time
        self.published: dict[tuple[str, Version], Published] = {}
        self.replies: list[Reply] = []
        self.faults: list[Fault] = []
        self.rollbacks: list[Rollback] = []
        self.binds: list[Bind] = []
        self.holds: list[Hold] = []
        self.calls: list[Call] = []
        self.aliases: dict[tuple[str, str], list[tuple[float, Version]]] = {}  # (adapter, alias) -> when it moved where
        self.violations: list[Violation] = []  # what was seen at once; the judge adds the rest
        self._answers: dict[tuple[str, int, tuple[int, ...]], list[tuple[Version, list[int]]]] = {}
        self._base = [expected_tokens(None, prompt, TOKENS_MAX) for prompt in PROMPTS]
        self._lock = threading.Lock()

    def publish(self, adapter: str, version: Version, folder: pathlib.Path, wrong: str) -> Published:
        entry = Published(adapter, version, folder, wrong, time.monotonic())
        with self._lock:
            self._learn(adapter, version, folder)
            self.published[adapter, version] = entry
        return entry

    def bind(self, door: str, name: str, number: int, folder: pathlib.Path) -> Bind:
        entry = Bind(door, name, number, time.monotonic())
        with self._lock:
            self._learn(door, (0, number), folder)
        self.binds.append(entry)
        return entry

    def names_bound(self, door: str) -> list[str]:
        return sorted({b.name for b in list(self.binds) if b.door == door and b.done})

    def _learn(self, whose: str, version: Version, folder: pathlib.Path) -> None:
        for index, prompt in enumerate(PROMPTS):
            tokens = expected_tokens(folder, prompt, TOKENS_MAX)
            self._answers.setdefault((whose, index, tuple(tokens[:TOKENS_MIN])), []).append((version, tokens))

    def judge_tokens(self, reply: Reply, prompt: int, choices: list[list[int]]) -> None:
        """Whose they are. What a framework's pause has cut short may be too short to tell."""
        if any(len(c) < TOKENS_MIN for c in choices):
            reply.reason = "CUT_SHORT"
        elif any(self.is_base(prompt, c) for c in choices):
            reply.reason = "BASE"
        reply.sources = [self.source_of(reply.adapter, prompt, c) for c in choices]

    def source_of(self, adapter: str, prompt: int, tokens: list[int]) -> Version | None:
        """Whose bytes gave these tokens."""
        known = self._answers.get((adapter, prompt, tuple(tokens[:TOKENS_MIN])), [])
        return next((version for version, wanted in known if wanted[: len(tokens)] == tokens), None)

    def is_base(self, prompt: int, tokens: list[int]) -> bool:
        return self._base[prompt][: len(tokens)] == tokens

    def newest_good(self, adapter: str, by: float) -> Version:
        """Of what was stored by then; (0, 0): nothing."""
        good = [p.version for p in self.all_published()
                if p.adapter == adapter and not p.wrong and 0 < p.stored <= by]
        return max(good, default=(0, 0))

    def all_published(self) -> list[Published]:
        with self._lock:
            return list(self.published.values())

    def of_weights(self, digest: str) -> Published | None:
        """By a fake engine's name for weights."""
        return next((p for p in self.all_published() if digest_of(p.folder) == digest), None)

    def dump(self, path: pathlib.Path) -> None:
        """For whoever looks closer: a line of JSON for each reply, fault and publish, with seconds since the beginning."""
        with path.open("w") as file:
            for entry in [*self.replies, *self.faults, *self.all_published(), *self.binds, *self.holds, *self.calls]:
                plain = {k: round(v - self.began, 3) if isinstance(v, float) and v else v for k, v in vars(entry).items()}
                file.write(json.dumps({"what": type(entry).__name__, **plain}, default=list_or_text) + "\n")

    def object(self, what: str, at: float = 0.0) -> None:
        self.violations.append(Violation(at or time.monotonic(), what))
