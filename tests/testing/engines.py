"""Inference engines for tests and the demo: real SGLang and vLLM on a CPU, and the strict fakes, behind one handle.

    with engines.fake("sglang") as engine:                         # ready in about a second
        engine.url, engine.set(token_delay_s=0.1), engine.restart()

    a = engines.real("sglang", engines.tiny_model() / "model", log_dir=logs)
    b = engines.real("vllm", engines.tiny_model() / "model", log_dir=logs)
    with engines.running(a, b):                                    # started side by side, 70 to 150 s on two cores
        ...

An engine keeps its port over restarts. Ending one ends its whole process group: both real engines run their scheduler
in processes of their own, which outlive a parent that is killed alone. Nothing here is safe to share between threads.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEV_PYTHON = ROOT / ".venv" / "dev" / "bin" / "python"
if not DEV_PYTHON.exists():  # on a machine with a GPU that is not set up by tools/setup, whose own Python has what is needed (tests/gpu/run)
    DEV_PYTHON = pathlib.Path(sys.executable)
KINDS = ("sglang", "vllm")

# Both kinds are told to hold eight adapters (and run eight requests), so that the same case reaches the same limit.
SLOTS = 8
SLOT_ARGS = {"sglang": ["--max-loaded-loras", str(SLOTS)], "vllm": ["--max-cpu-loras", str(SLOTS)]}

# Start-up is Python imports: 105 s on two cores that also compile, 360 s seen with twenty processes waiting for them.
REAL_START_DEADLINE_S = 600.0
FAKE_START_DEADLINE_S = 60.0
# One call on an engine: 300 tokens take 0.4 to 3 s on an idle machine, 60 s were seen with twenty processes waiting.
CALL_DEADLINE_S = 300.0
# SIGTERM lets a real engine remove its shared memory; one that hangs is killed.
STOP_DEADLINE_S = 10.0


_CLAIMED: list[socket.socket] = []  # by free_port


class EngineFailed(RuntimeError):
    """An engine ended, or did not answer, while it was awaited; the text holds the end of its log."""


def http_json(
    method: str, url: str, body: object = None, timeout_s: float = CALL_DEADLINE_S
) -> tuple[int, Any]:
    """(status, decoded JSON or text); an HTTP error is a status, a failed connection raises OSError."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            status, raw = reply.status, reply.read()
    except urllib.error.HTTPError as error:
        status, raw = error.code, error.read()
    try:
        return status, json.loads(raw)
    except ValueError:
        return status, raw.decode(errors="replace")


def free_port() -> int:
    """A port that nobody listens on. Programs that are restarted need the same one again, so they are told it, and may
    bind it seconds later: it lies below the ports that the kernel gives to outgoing connections, which would take it meanwhile.
    No other call, of any process in this network namespace, returns it while this process lives: a name among the abstract
    Unix sockets, which the kernel keeps for each namespace too, says that it is taken."""
    lowest_outgoing = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.SystemRandom().sample(range(10_000, lowest_outgoing), 100):
        claim = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe, contextlib.suppress(OSError):
            claim.bind(f"\0lorry-tests-port-{port}")
            probe.bind(("127.0.0.1", port))
            _CLAIMED.append(claim)
            return port
        claim.close()
    raise RuntimeError(f"a hundred ports between 10000 and {lowest_outgoing} are taken")


def tiny_model() -> pathlib.Path:
    """The directory that tools/engines/tiny_model.py makes (model/, adapters/), made once for each version of it."""
    script = ROOT / "tools" / "engines" / "tiny_model.py"
    key = hashlib.sha256(script.read_bytes()).hexdigest()[:12]
    out = ROOT / ".cache" / f"tiny-model-{key}"
    out.parent.mkdir(exist_ok=True)
    with (out.parent / "tiny-model.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # runs that overlap make it once
        if not out.is_dir():
            environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
            command = [os.fspath(DEV_PYTHON), os.fspath(script), os.fspath(out)]
            subprocess.run(command, check=True, env=environment, capture_output=True)
    return out


class Engine:
    """One engine process group. Use `real(...)` or `fake(...)` to make one. `name` tells several of one kind apart."""

    def __init__(
        self,
        kind: str,
        command: Sequence[str | os.PathLike],
        *,
        port: int,
        environment: dict,
        log_dir: os.PathLike | None,
        start_deadline_s: float,
        is_fake: bool,
        name: str = "",
    ):
        if kind not in KINDS:
            raise ValueError(f"no engine kind {kind!r}; there are {KINDS}")
        self.kind, self.is_fake = kind, is_fake
        self.name = name or kind
        self.port = port
        self.start_deadline_s = start_deadline_s
        self.ready_after_s: float | None = None
        self._command = [os.fspath(part) for part in command]
        self._environment = os.environ | environment
        self._own_logs = log_dir is None
        self.log_dir = pathlib.Path(log_dir or tempfile.mkdtemp(prefix="lorry-engine-"))
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen | None = None
        self._began = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log_path(self) -> pathlib.Path:
        return self.log_dir / f"{self.kind}-{self.port}.log"

    @property
    def pid(self) -> int:
        """The parent process, which also names the process group."""
        return self._started().pid

    def _started(self) -> subprocess.Popen:
        assert self._process is not None, "not started"
        return self._process

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Engine:
        """Starts the processes without waiting for them."""
        assert not self.is_running(), "already running"
        self._began = time.monotonic()
        self.ready_after_s = None
        command = [part.replace("{port}", str(self.port)) for part in self._command]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environment,
                cwd=self.log_dir,
            )
        return self

    def wait_ready(self, deadline_s: float | None = None) -> Engine:
        """Returns once /health answers 200; raises EngineFailed if the process ends or the deadline passes."""
        end = self._began + (deadline_s or self.start_deadline_s)
        while time.monotonic() < end:
            if not self.is_running():
                raise EngineFailed(f"{self.kind} ended while starting:\n{self.log_tail()}")
            with contextlib.suppress(OSError):
                if http_json("GET", f"{self.url}/health", timeout_s=5)[0] == 200:
                    self.ready_after_s = time.monotonic() - self._began
                    return self
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._started().wait(timeout=0.05 if self.is_fake else 0.5)
        raise EngineFailed(f"{self.kind} did not answer /health in time:\n{self.log_tail()}")

    def wait_dead(self, deadline_s: float = CALL_DEADLINE_S) -> None:
        """Returns once the parent process has ended by itself."""
        try:
            self._started().wait(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            raise EngineFailed(f"{self.kind} still runs:\n{self.log_tail()}") from None
        self.kill()

    def stop(self) -> None:
        """Asks the process group to end, kills what is left."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=STOP_DEADLINE_S)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the whole group: what a crash or the kernel's out-of-memory killer does."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self._process = None  # its group's number may soon be another's

    def suspend(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self, *, kill: bool = False) -> Engine:
        """A new boot on the same port, ready when this returns."""
        self.kill() if kill else self.stop()
        return self.start().wait_ready()

    def close(self) -> None:
        """Stops, and removes the logs if this handle made their folder, and what a `lorry up` in front of it left for its next one."""
        self.stop()
        shutil.rmtree(f"/dev/shm/lorry-{os.geteuid()}/engine-{self.port}", ignore_errors=True)
        if self._own_logs:
            shutil.rmtree(self.log_dir, ignore_errors=True)

    def call(
        self, method: str, path: str, body: object = None, timeout_s: float = CALL_DEADLINE_S
    ) -> tuple[int, Any]:
        return http_json(method, self.url + path, body, timeout_s)

    def set(self, **switches: object) -> dict:
        """Flips switches of a fake (tests/fakes/engine_core.py: Switches), and answers how all of them stand."""
        status, reply = self.call("POST", "/_fake/set", switches)
        assert status == 200, reply
        return reply

    def state(self) -> dict:
        """What a fake knows: running, waiting, paused, listed, references or cached."""
        return self.call("GET", "/_fake/state")[1]

    def log_tail(self, lines: int = 40) -> str:
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def __enter__(self) -> Engine:
        if not self.is_running():
            self.start()
        try:
            return self.wait_ready()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


def real(
    kind: str,
    model_dir: os.PathLike,
    *,
    port: int = 0,
    log_dir: os.PathLike | None = None,
    args: Sequence[str] = (),
    env: dict | None = None,
) -> Engine:
    """A real engine on the CPU, not yet started. Needs tools/setup-venvs. About 3.5 GB of memory."""
    script = ROOT / "tools" / "engines" / f"run_{kind}"
    port = port or free_port()
    return Engine(
        kind,
        [script, pathlib.Path(model_dir).resolve(), "{port}", *args],
        port=port,
        environment=env or {},
        log_dir=log_dir,
        start_deadline_s=REAL_START_DEADLINE_S,
        is_fake=False,
    )


def fake(
    kind: str,
    model_dir: os.PathLike | None = None,
    *,
    port: int = 0,
    log_dir: os.PathLike | None = None,
    args: Sequence[str] = (),
    env: dict | None = None,
    switches: dict | None = None,
    name: str = "",
    respawn: bool = False,
) -> Engine:
    """A strict fake of an engine, not yet started. Needs .venv/dev. With `respawn` an engine that ends by itself, or is
    killed alone, is started again at once, as a supervisor does."""
    script = ROOT / "tests" / "fakes" / f"fake_{kind}.py"
    model = ["--model", os.fspath(model_dir)] if model_dir else []
    port = port or free_port()
    command = [
        DEV_PYTHON,
        script,
        "--port",
        "{port}",
        *model,
        "--fake",
        json.dumps(switches or {}),
        *args,
    ]
    if respawn:
        command = ["/bin/sh", "-c", 'while :; do "$@"; done', "respawn", *command]
    return Engine(
        kind,
        command,
        port=port,
        environment=env or {},
        log_dir=log_dir,
        start_deadline_s=FAKE_START_DEADLINE_S,
        is_fake=True,
        name=name,
    )


@contextlib.contextmanager
def running(*engines: Engine) -> Iterator[tuple[Engine, ...]]:
    """Starts all of them side by side, waits for all, and stops all whatever happens."""
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.wait_ready()
        yield engines
    finally:
        for engine in engines:
            engine.close()
