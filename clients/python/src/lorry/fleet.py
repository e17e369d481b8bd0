"""Lorry's programs beside a trainer or a notebook: started for engines that run already, and ended with this process, however it ends.

They come with the wheel ``lorry``, which ``make packages`` builds and which is not on PyPI yet, or are built from a checkout.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import math
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Sequence
from typing import IO, Any

from lorry.errors import LorryError
from lorry.leftovers import Leftovers, locked
from lorry.programs import find_program, hold

# The services are up within a second; a busy machine has taken ten.
START_TIMEOUT_S = 60.0
# Doors let what runs go on for 25 s; then it has had its time, and so have the programs that end after them.
_STOP_S = 60.0
# Room for one error of the command, which has the last lines of a service's log.
_LAST_WORDS_BYTES = 1 << 16
# Temporary folders of this host: several may share a file system without knowing each other's locks.
_SCRATCH = f"lorry-local-{zlib.crc32(os.uname().nodename.encode()):08x}-"


class Fleet:
    """Programs that this process runs. They end with ``close``, at the end of ``with``, and with this process, also where it is killed:
    they read a pipe that it alone holds open. They do not end where only their addresses are kept and this object is forgotten.

    Attributes:
        doors: engine's URL → URL of the door in front of it: what clients call instead of the engine.
        store, orchestrator: ``host:port``.
        token_file: of the token that they ask for; None where they ask for none.
    """

    def __init__(self, process: subprocess.Popen[str], told: dict[str, Any], scratch: contextlib.ExitStack) -> None:
        self.doors: dict[str, str] = {engine["engine"]: engine["door"] for engine in told["engines"]}
        self.store: str = told["store"]
        self.orchestrator: str = told["orchestrator"]
        self.token_file: str | None = told["token_file"] or None
        self._process = process
        self._scratch, self._owner = scratch, os.getpid()
        atexit.register(self.close)  # which keeps this object until then, too

    def addresses(self) -> dict[str, Any]:
        """What :func:`lorry.open_run`, :class:`lorry.Admin` and :class:`lorry.Connection` are to be told: ``open_run("policy",
        **fleet.addresses())``."""
        return {"store": self.store, "orchestrator": self.orchestrator, "token_file": self.token_file}

    def environment(self) -> dict[str, str]:
        """The same for programs, the ``lorry`` command among them."""
        told = {"LORRY_STORE": self.store, "LORRY_ORCHESTRATOR": self.orchestrator, "LORRY_TOKEN_FILE": self.token_file}
        return {name: value for name, value in told.items() if value}

    def close(self) -> None:
        """Ends the programs. Requests that run may go on for 25 seconds; the engines run on, and clients call them directly again.

        Without a ``data_dir`` of yours what the programs wrote goes, too, but for the adapters in shared memory that an engine has loaded and
        may read again: they go when this process ends, if the engine has ended by then, else with the next fleet in front of that engine.
        What a process that was killed left goes with the next fleet on this machine. In a forked child this does nothing.
        """
        if os.getpid() == self._owner:  # a forked child has a copy of all this, and its parent goes on
            atexit.unregister(self.close)
            self._scratch.close()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def local(
    engines: str | Sequence[str] = (), *, data_dir: str | os.PathLike[str] | None = None, pool: str = "rollout",
    base_model_config: str | os.PathLike[str] | None = None, program: str | os.PathLike[str] | None = None,
    proxy_flags: str | Sequence[str] = (), timeout_s: float = START_TIMEOUT_S,
) -> Fleet:
    """A whole fleet on this machine: a store, an orchestrator, and a door in front of each engine, on free loopback ports.

    Args:
        engines: URLs of SGLang or vLLM servers that run, or the URL of one.
        data_dir: where versions are stored; default a temporary directory, which goes with the fleet.
        pool: the engines' pool.
        base_model_config: config.json of the engines' base model, where they do not tell it.
        program: the ``lorry`` command; default the one beside this Python, else on $PATH.
        proxy_flags: more flags for every engine-proxy, such as ``["--engine-key-file=engine.key"]``; `engine-proxy --help` lists them.
        timeout_s: how long the programs may take to start.

    Raises:
        LorryError: ``BINARY_MISSING``: there is no such command; else why the programs did not start, with the log to read. Where there is
            no ``data_dir`` it stays until the next fleet on this machine.
    """
    return _start(["up"], engines, data_dir, pool, base_model_config, program, proxy_flags, timeout_s)


def attach(
    engine: str, *, store: str | None = None, orchestrator: str | None = None, token_file: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None, pool: str = "rollout",
    base_model_config: str | os.PathLike[str] | None = None, program: str | os.PathLike[str] | None = None,
    proxy_flags: str | Sequence[str] = (), timeout_s: float = START_TIMEOUT_S,
) -> Fleet:
    """A door in front of one engine that runs, for a store and an orchestrator that run elsewhere: in a Ray actor that owns the engine, say.

    Args:
        engine: URL of the SGLang or vLLM server.
        store, orchestrator, token_file: default as for :class:`lorry.Connection`.
        data_dir: where the door keeps its journal and its log; default a temporary directory, which goes with it. The adapters' files, which
            the engine reads, lie in ``/dev/shm/lorry-UID/MEMBER``, or where ``--image-dir=DIR`` in ``proxy_flags`` says.
        pool, base_model_config, program, proxy_flags, timeout_s: as for :func:`local`.

    Raises:
        LorryError: as :func:`local`.
    """
    named = {"--store": store, "--orchestrator": orchestrator, "--token-file": token_file}
    words = [f"{flag}={value}" for flag, value in named.items() if value is not None]
    return _start(["attach", *words], [engine], data_dir, pool, base_model_config, program, proxy_flags, timeout_s)


def _start(
    words: list[str], engines: str | Sequence[str], data_dir: str | os.PathLike[str] | None, pool: str,
    base_model_config: str | os.PathLike[str] | None, program: str | os.PathLike[str] | None, proxy_flags: str | Sequence[str],
    timeout_s: float,
) -> Fleet:
    _remove_orphans()
    with contextlib.ExitStack() as stack:
        scratch, log = _make_scratch(stack)
        leftovers = Leftovers()
        if data_dir is None:  # in a directory that stays is what the next fleet believes of them
            stack.callback(leftovers.remove)
        command = [_program(program), *words, "--json", "--until-stdin-ends", f"--pool={pool}"]
        command.append(f"--timeout={max(1, math.ceil(timeout_s))}s")  # of each program; all of them together have it here
        command.append(f"--data-dir={data_dir if data_dir is not None else scratch / 'data'}")
        command += [f"--engine={engine}" for engine in _each(engines)]
        command += [f"--proxy-flag={flag}" for flag in _each(proxy_flags)]
        if base_model_config is not None:
            command.append(f"--base-model-config={base_model_config}")
        environment = dict(os.environ)
        if words[0] == "up":  # the file of a `lorry up` of this user's own stays as it is
            environment["XDG_STATE_HOME"] = str(scratch)
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
                                   start_new_session=True)
        hold(process)
        stack.callback(_end, process)
        told = _first_line(process, timeout_s)
        if not told:
            _end(process)
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
            logs = pathlib.Path(data_dir if data_dir is not None else scratch / "data") / "logs"
            error = _why_none(f"lorry {words[0]}", log.read(), logs, timeout_s if told is None else None)
            if data_dir is None and logs.is_dir():  # it is named, and goes with the next fleet, as what a killed process left
                log.close()
                stack.pop_all()
            raise error
        leftovers.began(json.loads(told)["engines"])
        return Fleet(process, json.loads(told), stack.pop_all())


def _each(given: str | Sequence[str]) -> Sequence[str]:
    """A text alone is one, and no sequence of letters."""
    return [given] if isinstance(given, str) else given


def _why_none(command: str, words: str, logs: pathlib.Path, late_s: float | None) -> LorryError:
    """Why the command did not start what it should, by the last line of its stderr, which is JSON. ``late_s``: so long it had, and runs on."""
    if late_s is not None:
        return LorryError(f"`{command}` is not ready after {late_s:g} s: read the logs in {logs}, or give it more time by timeout_s=",
                          "SERVICE_NOT_READY", "DEADLINE_EXCEEDED")
    try:
        said = json.loads(words.strip().rpartition("\n")[2])
        what, remedy, reason = str(said["message"]).strip(), str(said["remedy"]), str(said["reason"])
    except (ValueError, LookupError, TypeError):  # it died without a word of its own
        return LorryError(f"`{command}` ended before it was ready; read the logs in {logs}: {words.strip()}", "SERVICE_ENDED", "ABORTED")
    remedy = "" if reason in ("USAGE", "SERVICE_ENDED") else remedy  # "lorry help up"; the message names the log
    remedy = "read its log, or give it more time by timeout_s=" if reason == "SERVICE_NOT_READY" else remedy
    return LorryError(f"`{command}` did not start: {what}" + (f"; {remedy[0].lower()}{remedy[1:]}" if remedy else ""), reason, "ABORTED")


def _make_scratch(stack: contextlib.ExitStack) -> tuple[pathlib.Path, IO[str]]:
    """A temporary folder, and the programs' log in it, which stays locked until this process and they have closed it."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=_SCRATCH))
    stack.callback(_remove_scratch, folder)
    log = stack.enter_context((folder / "new").open("w+", encoding="utf-8", errors="replace"))
    with contextlib.suppress(OSError):  # of a file system without locks, where nobody takes it for an orphan then
        fcntl.flock(log, fcntl.LOCK_EX)
        (folder / "new").rename(folder / "log")  # so nobody ever sees it unlocked
    return folder, log


def _remove_orphans() -> None:
    """What fleets of processes left that were killed."""
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError), locked(folder / "log", os.O_RDWR, fcntl.LOCK_EX | fcntl.LOCK_NB):
            _remove_scratch(folder)


def _remove_scratch(folder: pathlib.Path) -> None:
    shutil.rmtree(folder / "data", ignore_errors=True)  # first: where this does not come to its end, the log says that it is an orphan
    shutil.rmtree(folder, ignore_errors=True)


def _program(program: str | os.PathLike[str] | None) -> str:
    if program is not None:
        return os.fspath(program)
    found = find_program()
    if found is None:
        raise LorryError("there is no lorry command beside this Python nor on $PATH; build it with `make packages` in a checkout and "
                         "pip install its wheels (build/release/packages), as they are not on PyPI yet, or say program=",
                         "BINARY_MISSING", "FAILED_PRECONDITION")
    return found


def _first_line(process: subprocess.Popen[str], timeout_s: float) -> str | None:
    """The addresses, which are printed once everything serves; empty: the program ended; None: it did not say them in time."""
    assert process.stdout is not None
    ready = select.poll()  # a trainer may have more descriptors than select knows
    ready.register(process.stdout, select.POLLIN)
    ends_at = time.monotonic() + timeout_s
    text = ""
    while not text.endswith("\n"):
        if not ready.poll(max(ends_at - time.monotonic(), 0) * 1000):
            return None
        piece = os.read(process.stdout.fileno(), 65536).decode()
        if not piece:
            return ""
        text += piece
    return text


def _end(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
