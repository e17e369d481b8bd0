"""Frameworks that know nothing of Lorry, at one door: their calls, and the sequences in which each is documented to make them.

    framework = Framework(world, "sglang")
    with Asking(framework) as clients:
        for step in astraflow(framework, make_adapter, folder, rounds=20, restart_every=10):
            ...                                   # after each: the name stands for these bytes, proved
    clients.check()

Whose bytes answered is told by the digest of the reply: what a name stood for when it was loaded is asked once, and every other
answer that announces the same digest must be by the same bytes.
"""

from __future__ import annotations

import pathlib
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

from testing.doors import Answer
from testing.engines import http_json
from testing.tensors import tensor_call
from testing.workers import Workers
from testing.world import World

# A framework gives up after a minute or more; one on a machine that compiles beside it waits for as long as this.
CALL_S = 90.0
# Parts of an engine's memory.
CACHE, WEIGHTS = "kv_cache", "weights"
Sources = Callable[[int], pathlib.Path]


def ok(reply: tuple[int, Any]) -> None:
    status, body = reply
    assert status == 200, body


def write(source: pathlib.Path, target: pathlib.Path) -> None:
    """As a trainer writes one directory anew, in place."""
    target.mkdir(exist_ok=True)
    for file in source.iterdir():
        shutil.copyfile(file, target / file.name)


class Framework:
    """Calls one door as frameworks call engines. `tokens`: how many prove whose bytes answered."""

    def __init__(self, world: World, member: str, tokens: int = 4) -> None:
        self.world, self.member, self._tokens = world, member, tokens
        self.kind = world.engines[member].kind
        self.current: str | None = None  # the name that its clients ask by
        self.by_digest: dict[str, pathlib.Path] = {}
        self.slowest_s = 0.0
        self.calls = 0

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        began = time.monotonic()
        reply = http_json(method, self.world.fleet.door(self.member) + path, body, CALL_S)
        self.slowest_s, self.calls = max(self.slowest_s, time.monotonic() - began), self.calls + 1
        return reply

    def _post(self, path: str, body: object = None) -> tuple[int, Any]:
        return self.call("POST", path, body)

    def load(self, name: str, path: pathlib.Path, **more: object) -> tuple[int, Any]:
        prefix = "" if self.kind == "sglang" else "/v1"
        return self._post(prefix + "/load_lora_adapter", {"lora_name": name, "lora_path": str(path), **more})

    def load_tensors(self, call: dict[str, Any]) -> tuple[int, Any]:
        return self._post("/load_lora_adapter_from_tensors", call)

    def unload(self, name: str) -> tuple[int, Any]:
        prefix = "" if self.kind == "sglang" else "/v1"
        return self._post(prefix + "/unload_lora_adapter", {"lora_name": name})

    def flush(self) -> tuple[int, Any]:
        return self._post("/flush_cache" if self.kind == "sglang" else "/reset_prefix_cache", {})

    def pause(self) -> tuple[int, Any]:
        """Ends what runs, as SGLang does where no mode is named."""
        return self._post("/pause_generation", {}) if self.kind == "sglang" else self._post("/pause?mode=abort")

    def go_on(self) -> tuple[int, Any]:
        return self._post("/continue_generation", {}) if self.kind == "sglang" else self._post("/resume")

    def release(self) -> tuple[int, Any]:
        """All of the engine's memory that it takes again by `resume`."""
        if self.kind == "sglang":
            return self._post("/release_memory_occupation", {"tags": [CACHE, WEIGHTS]})
        return self._post("/sleep?level=1")

    def resume(self, *tags: str) -> tuple[int, Any]:
        if self.kind == "sglang":
            return self._post("/resume_memory_occupation", {"tags": list(tags)})
        return self._post("/wake_up?" + "&".join(f"tags={tag}" for tag in tags))

    def ask(self, name: str, **more: Any) -> Answer:
        return self.world.doors[self.member].ask(name, **more)

    def answers_by(self, name: str, folder: pathlib.Path, **more: Any) -> Answer:
        """Asserts that the bytes in `folder` answer to the name."""
        answer = self.ask(name, tokens=self._tokens, **more)
        assert answer.status == 200, answer.body
        assert answer.headers["x-lorry-adapter"] == name
        assert answer.tokens, answer.body
        self.world.judge(answer, folder)
        assert self.by_digest.setdefault(answer.digest, folder) == folder, "one digest, two contents"
        return answer


def astraflow(framework: Framework, sources: Sources, folder: pathlib.Path, rounds: int, restart_every: int) -> Iterator[int]:
    """pause → load on every server → flush → continue; names count from 1 again with other bytes, as after a restart of the
    framework, in one directory that is written anew in place. None is ever unloaded."""
    for step in range(rounds):
        name, source = f"lora_v{1 + step % restart_every}", sources(step)
        write(source, folder)
        ok(framework.pause())
        ok(framework.load(name, folder))
        framework.current = name  # before it goes on
        framework.flush()
        ok(framework.go_on())
        framework.answers_by(name, source)
        yield step


def areal(framework: Framework, sources: Sources, folder: pathlib.Path, rounds: int, keep: int) -> Iterator[int]:
    """{lora_name}-v{N}, each in a directory of its own: load, then the unload of v{N - keep}, whatever comes of it."""
    for version in range(rounds):
        source, name = sources(version), f"lora-gsm8k-v{version}"
        at = folder / f"weight_update_v{version}"
        write(source, at)
        ok(framework.load(name, at))
        framework.current = name
        if version - keep >= 0:
            ok(framework.unload(f"lora-gsm8k-v{version - keep}"))
            shutil.rmtree(folder / f"weight_update_v{version - keep}")
        framework.answers_by(name, source)
        yield version


def miles(framework: Framework, sources: Sources, folder: pathlib.Path | None, rounds: int) -> Iterator[int]:
    """unload → flush → load → flush under one name, in one directory that is written anew; without one, as tensors in the call."""
    for step in range(rounds):
        source = sources(step)
        if folder is not None:
            write(source, folder)
        if step > 0:
            ok(framework.unload("miles_lora"))
            assert framework.ask("miles_lora").status == 404
            framework.flush()
        ok(framework.load("miles_lora", folder) if folder is not None else framework.load_tensors(tensor_call("miles_lora", source)))
        framework.current = "miles_lora"
        framework.flush()
        framework.answers_by("miles_lora", source)
        yield step


def weight_versions(answer: Answer) -> set[str]:
    """What a reply of SGLang's says where miles reads the version, in each of its events."""
    events = answer.body if isinstance(answer.body, list) else [answer.body]
    return {event["meta_info"]["weight_version"] for event in events}


class Asking(Workers):
    """Clients that ask by the framework's current name, some for several samples, from enter to exit; `check()` judges."""

    def __init__(
        self, framework: Framework, workers: int = 2, tokens: int = 6, gone: bool = False, pause_s: float = 0.005, asleep: bool = False
    ) -> None:
        """`gone`: the name may stand for nothing meanwhile. `asleep`: the engine may have been put to sleep when a request arrives."""
        self.answers = 0
        self.wrong: list[str] = []
        self._framework, self._tokens, self._gone, self._pause_s, self._asleep = framework, tokens, gone, pause_s, asleep
        self._unjudged: list[Answer] = []
        super().__init__(*[self._ask_on] * workers, join_s=CALL_S)

    def _ask_on(self) -> None:
        turn = 0
        while not self._stop.wait(self._pause_s):
            name, turn = self._framework.current, turn + 1
            if name is None:
                continue
            if turn % 8 == 0:  # its samples are asked for so that they are counted, and not judged
                self._framework.world.doors[self._framework.member].ask_samples(name, 2, tokens=2)
                continue
            answer = self._framework.ask(name, tokens=self._tokens, stream=turn % 3 == 0)
            self.answers += 1
            if (answer.status == 404 and self._gone) or (answer.reason == "ENGINE_ASLEEP" and self._asleep):
                continue
            if answer.status != 200:
                self.wrong.append(f"{name}: {answer.status} {answer.body}")
            elif answer.tokens:  # none: it was aborted before its first
                self._unjudged.append(answer)

    def judge(self, wrong: Callable[[Answer, pathlib.Path], str]) -> None:
        """Judges what came so far; of digests that are not known yet later. `wrong` says what is, or nothing."""
        unjudged, self._unjudged = self._unjudged, []
        for answer in unjudged:
            folder = self._framework.by_digest.get(answer.digest)
            if folder is None:
                self._unjudged.append(answer)
            elif why := wrong(answer, folder):
                self.wrong.append(f"{answer.headers}: {why}")

    def check(self, wrong: Callable[[Answer, pathlib.Path], str]) -> None:
        """After the exit: every answer was by the bytes whose digest it announces."""
        self.judge(wrong)
        unknown = sorted({answer.digest for answer in self._unjudged})
        assert not self.wrong and not unknown, f"{self.wrong[:3]}, {len(self.wrong)} of {self.answers}; unknown digests {unknown}"
