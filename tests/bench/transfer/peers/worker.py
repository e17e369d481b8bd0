"""usage: worker.py RUNNER JOB: one process of a peer, started by turn.py; a JSON object a line on stdin and stdout.

    {"do": "prepare"}                    {}
    {"do": "fill", "number": 3}          {"hash": ...}
    {"do": "transfer", "hash": true}     {"hash": ..., "seconds": ...}
    {"do": "verify"}                     {"hash": ...}

Instead of an answer, {"error": why}, or {"say": word} until all have said theirs, and then {"heard": [words]} comes in.
It ends when stdin does, and with the process that started it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import pathlib
import signal
import sys
import types
import typing

from peer import Job, Peer

_PR_SET_PDEATHSIG = 1


def load(path: pathlib.Path) -> types.ModuleType:
    """A runner; its name shadows no library's."""
    spec = importlib.util.spec_from_file_location("runner_" + path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Line:
    """The way to the table, which no library may print into."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        self._in = os.fdopen(os.dup(0), "r")
        os.dup2(2, 1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)

    def say(self, **words: object) -> None:
        self._out.write(json.dumps(words) + "\n")

    def hear(self) -> dict:
        line = self._in.readline()
        if not line:
            raise EOFError
        return json.loads(line)

    def exchange(self, word: str) -> list[str]:
        self.say(say=word)
        return self.hear()["heard"]


def obey(peer: Peer, command: dict) -> dict[str, typing.Any]:
    match command["do"]:
        case "prepare":
            peer.prepare()
        case "fill":
            return {"hash": peer.fill(command["number"])}
        case "transfer":
            seconds = peer.transfer()
            return {"seconds": seconds, "hash": peer.verify() if command["hash"] and not peer.job.sends else None}
        case "verify":
            return {"hash": peer.verify()}
    return {}


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    line, peer = Line(), None
    try:
        job = Job(**json.loads(sys.argv[2]))
        peer = load(pathlib.Path(sys.argv[1])).Peer(job, line.exchange)
        while True:
            line.say(**obey(peer, line.hear()))
    except EOFError:
        pass
    except Exception as error:  # whatever a peer's library throws is the reason of its row
        line.say(error=f"{type(error).__name__}: {error}")
        raise
    finally:
        if peer is not None:
            peer.close()


if __name__ == "__main__":
    main()
