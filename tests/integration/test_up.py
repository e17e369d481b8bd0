"""`lorry up`: whoever runs it commands the fleet without naming it, and nobody else on the machine does."""

import contextlib
import fcntl
import http.client
import json
import os
import pathlib
import shlex
import signal
import socket
import stat
import subprocess
import termios
import urllib.request

import grpc
import lorry
import pytest
from testing import engines
from testing.waiting import DEADLINE_S, until

METHODS = {
    "store": "/lorry.store.v1.StoreService/ListAdapters",
    "orchestrator": "/lorry.sync.v1.SyncService/GetStatus",
}


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """$XDG_STATE_HOME of the user who runs it."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def engine(tiny, state):
    with engines.fake("vllm", tiny / "model", log_dir=state) as made:
        yield made


@pytest.fixture(scope="module")
def up(bin_dir, engine, state):
    """What `lorry up --json` prints of a fleet in front of one engine."""
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(state / "up.log", "w"))
        process = subprocess.Popen(
            [bin_dir / "lorry", "up", "--json", "--engine", engine.url], env=os.environ | {"XDG_STATE_HOME": str(state)},
            stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            line = process.stdout.readline()
            assert line, (state / "up.log").read_text()
            yield json.loads(line)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0, (state / "up.log").read_text()


@pytest.mark.parametrize("words", [["up"], ["up", "--json"]])
def test_without_an_engine_it_says_so_and_what_comes_next(bin_dir, tmp_path, words):
    """Two services that run look like success, and nothing can be served by them."""
    with contextlib.ExitStack() as stack:
        process = subprocess.Popen([bin_dir / "lorry", *words], env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        stack.callback(process.wait, DEADLINE_S)
        stack.callback(process.send_signal, signal.SIGTERM)
        said = ""
        while "lorry attach --engine" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        assert "no engine is attached" in said and "none is served" in said, said


def command(bin_dir, *words, home):
    done = subprocess.run([bin_dir / "lorry", *words], env=os.environ | {"XDG_STATE_HOME": str(home)}, text=True,
                          capture_output=True, timeout=DEADLINE_S, check=False)
    return done.returncode, done.stdout + done.stderr


@contextlib.contextmanager
def started(bin_dir, home, *words):
    """What `lorry up --json` prints; ended afterwards."""
    process = subprocess.Popen([bin_dir / "lorry", "up", "--json", *words], env=os.environ | {"XDG_STATE_HOME": str(home)},
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


def children(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_it_comes_back_where_it_was(bin_dir, tmp_path, engine):
    """A trainer and a rollout keep the addresses that they were given."""
    def addresses(up):
        return [up["store"], up["orchestrator"], *(e["door"] for e in up["engines"])]

    with started(bin_dir, tmp_path, "--engine", engine.url) as up:
        first = addresses(up)
    with started(bin_dir, tmp_path, "--engine", engine.url) as up:
        assert addresses(up) == first
    host, port = first[0].rsplit(":", 1)
    with socket.create_server((host, int(port))), started(bin_dir, tmp_path, "--engine", engine.url) as up:
        moved = addresses(up)
    assert moved[0] != first[0] and moved[1:] == first[1:], "what somebody else has taken meanwhile it leaves to them"


def test_a_terminal_that_is_closed_ends_it(bin_dir, tmp_path):
    """Nobody would see it any more, and a closed terminal has always ended what was started in it."""
    ours, terminal = os.openpty()
    process = subprocess.Popen([bin_dir / "lorry", "up"], env=os.environ | {"XDG_STATE_HOME": str(tmp_path)}, stdin=terminal,
                               stdout=terminal, stderr=terminal, start_new_session=True,
                               preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(terminal)
    said = b""
    while b"no engine is attached" not in said:
        said += os.read(ours, 4096)
    services = children(process.pid)
    assert len(services) == 2
    os.close(ours)
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGHUP)  # a shell tells its jobs, and the kernel tells them as it ends
    assert process.wait(DEADLINE_S) == 0
    until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in services), "its services have ended")


def test_without_a_terminal_it_runs_on(bin_dir, tmp_path):
    """As under nohup."""
    with started(bin_dir, tmp_path) as up:
        services = children(up["pid"])
        for pid in [up["pid"], *services]:
            os.kill(pid, signal.SIGHUP)
        status, said = command(bin_dir, "adapters", home=tmp_path)
        assert status == 0, said
        assert children(up["pid"]) == services
        logs = (pathlib.Path(up["data_dir"]) / "logs").glob("*.log")
        assert not any("UCX" in log.read_text() for log in logs), "whose debugger takes the signal"


def test_its_token_can_be_read_by_its_user_alone(up):
    token = pathlib.Path(up["token_file"])
    for file in (token, token.with_name("tokens")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert token.read_text().strip() in token.with_name("tokens").read_text()


@pytest.mark.parametrize("service", METHODS)
def test_whoever_shows_no_token_is_refused(up, service):
    with grpc.insecure_channel(up[service]) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(METHODS[service])(b"", timeout=DEADLINE_S)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_the_command_line_and_python_find_it_by_themselves(up, state, bin_dir, monkeypatch, make_adapter):
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    with lorry.open_run("policy") as run:
        assert run.publish(make_adapter(1), version=1).wait("serving", 60).active == 1
    code, text = command(bin_dir, "status", home=state)
    assert code == 0 and "policy" in text, text
    _, text = command(bin_dir, "doctor", home=state)
    assert "answers, 1 adapter\n" in text and "answers, 1 engine on the roster\n" in text, text


def test_another_user_is_refused(up, bin_dir, tmp_path):
    code, text = command(bin_dir, "status", "--store", up["store"], "--orchestrator", up["orchestrator"], home=tmp_path)
    assert code != 0 and "UNAUTHENTICATED" in text, text


def test_a_second_one_is_told_of_the_first_and_leaves_it_alone(up, state, bin_dir):
    token = pathlib.Path(up["token_file"]).read_text()
    code, text = command(bin_dir, "up", home=state)
    assert code == 1 and "ALREADY_LOCKED" in text and f"process {up['pid']} " in text and "--data-dir" in text, text
    assert pathlib.Path(up["token_file"]).read_text() == token
    code, text = command(bin_dir, "status", home=state)
    assert code == 0 and "policy" in text, text


def test_a_second_one_over_another_folder_leaves_the_file_to_the_first(up, state, bin_dir, tmp_path):
    file, log = state / "lorry" / "up.json", tmp_path / "log"
    with log.open("w") as errors:
        second = subprocess.Popen(
            [bin_dir / "lorry", "up", "--json", "--data-dir", tmp_path / "other"], env=os.environ | {"XDG_STATE_HOME": str(state)},
            stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            told = json.loads(second.stdout.readline())
            assert json.loads(file.read_text()) == up
            words = ["--store", told["store"], "--orchestrator", told["orchestrator"], "--token-file", told["token_file"]]
            assert f"the fleet of process {up['pid']}; this one is reached by {' '.join(words)}" in log.read_text()
            code, text = command(bin_dir, "status", *words, home=state)
            assert code == 0 and "policy" not in text, text
        finally:
            second.send_signal(signal.SIGTERM)
            assert second.wait(DEADLINE_S) == 0, log.read_text()
    assert json.loads(file.read_text()) == up


def test_the_hints_of_a_second_one_lead_to_it(up, state, bin_dir, tmp_path):
    """Followed word for word they would act on the first."""
    with contextlib.ExitStack() as stack:
        second = subprocess.Popen(
            [bin_dir / "lorry", "up", "--data-dir", tmp_path / "an other"], env=os.environ | {"XDG_STATE_HOME": str(state)},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        stack.callback(second.wait, DEADLINE_S)
        stack.callback(second.send_signal, signal.SIGTERM)
        said = [second.stdout.readline()]
        while not said[-1].startswith("  lorry watch"):
            assert said[-1], said
            said.append(second.stdout.readline())
        hints = [shlex.split(line) for line in said if line.startswith("  lorry ")]
        flags = {tuple(words[words.index("--store"):]) for words in hints}
        assert [words[1] for words in hints] == ["attach", "publish", "watch"] and len(flags) == 1, said
        code, text = command(bin_dir, "status", *flags.pop(), home=state)
        assert code == 0 and "policy" not in text, text


def test_the_file_of_a_fleet_that_was_killed_counts_for_nothing(up, bin_dir, tmp_path):
    file = tmp_path / "lorry" / "up.json"
    file.parent.mkdir()
    ended = subprocess.Popen(["true"])
    ended.wait()
    file.write_text(json.dumps(up | {"pid": ended.pid}))
    code, text = command(bin_dir, "adapters", home=tmp_path)
    assert code == 1 and "NO_ADDRESS" in text, text
    # Nor where another process has its pid: nobody holds that folder.
    (tmp_path / "gone" / "run").mkdir(parents=True)
    file.write_text(json.dumps(up | {"pid": os.getpid(), "data_dir": str(tmp_path / "gone")}))
    with subprocess.Popen([bin_dir / "lorry", "up", "--json"], env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
                          stdout=subprocess.PIPE, text=True) as fleet:
        told = json.loads(fleet.stdout.readline())
        assert json.loads(file.read_text()) == told
        fleet.send_signal(signal.SIGTERM)
    assert not file.exists()


def test_doors_are_put_up_one_by_one(up, state, bin_dir, tiny):
    """Each has its own folder, so that none takes another's token."""
    with contextlib.ExitStack() as stack:
        folders = []
        for name in ("sglang", "vllm"):
            made = stack.enter_context(engines.fake(name, tiny / "model", log_dir=state, name=f"attached-{name}"))
            process = subprocess.Popen(
                [bin_dir / "lorry", "attach", "--json", "--engine", made.url], env=os.environ | {"XDG_STATE_HOME": str(state)},
                stdout=subprocess.PIPE, text=True)
            stack.callback(lambda p=process: p.wait(DEADLINE_S))
            stack.callback(lambda p=process: p.send_signal(signal.SIGTERM))
            folders.append(json.loads(process.stdout.readline())["data_dir"])
        assert len(set(folders)) == 2, folders
        until(lambda: command(bin_dir, "status", home=state)[1].count("READY") >= 3, "all of them are there")
        _, text = command(bin_dir, "doctor", home=state)
        assert text.count(" READY") >= 2 and "token" not in text and "not answer" not in text, text
        _, text = command(bin_dir, "why", "of-nobody", home=state)
        assert "no answer" not in text, "the fleet's token is known at these doors, too: " + text


def test_a_drain_waits_for_what_runs_and_aborts_nothing(up, engine, state, bin_dir):
    """The last one: the door stays closed."""
    (here,) = up["engines"]
    engine.set(token_delay_s=0.2)
    client = http.client.HTTPConnection(here["door"].removeprefix("http://"), timeout=DEADLINE_S)
    body = {"model": "policy", "prompt": [1, 2, 3], "max_tokens": 2000, "ignore_eos": True, "stream": True}
    client.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    reply = client.getresponse()
    first = reply.readline()
    assert reply.status == 200 and first.startswith(b"data: "), first

    code, text = command(bin_dir, "drain", here["member"], "--timeout", "1s", home=state)
    assert code != 0 and "DRAINING" in text, text
    with pytest.raises(OSError):  # nobody else comes in
        urllib.request.urlopen(here["door"] + "/health", timeout=10)
    engine.set(token_delay_s=0.0)
    assert b"data: [DONE]" in reply.read(), "it went on to its end"
    until(lambda: here["member"] not in command(bin_dir, "status", home=state)[1], "nobody asks again, and it leaves the fleet")
    code, text = command(bin_dir, "drain", here["member"], home=state)
    assert code != 0 and "MEMBER_UNKNOWN" in text and "have drained" in text, text
