"""Large images leave a trainer through `lorry mover`: what carried them, and what is left of it when either of the two dies."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap

import lorry
import pytest
from lorry.mover import Mover, MoverGone
from testing.fleet import Fleet
from testing.sockets import listeners
from testing.waiting import until

CHANNELS = {"ucx-shm", "grpc"}


@pytest.fixture(scope="module")
def fleet(bin_dir, tmp_path_factory):
    """Store and orchestrator that no engine attaches to."""
    with Fleet(bin_dir, tmp_path_factory.mktemp("fleet"), {}) as made:
        yield made


@pytest.fixture
def mover(bin_dir, monkeypatch):
    monkeypatch.setenv("LORRY_MOVER", str(bin_dir / "lorry"))


def arrived(fleet):
    """Image bytes that the store has taken, by what carried them."""
    found = re.findall(r"^lorry_transfer_bytes_total\{(.*)\} (\S+)$", fleet.store.metrics(), re.MULTILINE)
    return {c: sum(float(n) for labels, n in found if f'"{c}"' in labels and '"in"' in labels) for c in CHANNELS}


def publish(fleet, adapter, large):
    with lorry.open_run(adapter, **fleet.addresses()) as run:
        run.publish(large.state, config=large.config, version=1, progress=False).wait("stored", 60)


def digest(fleet, adapter):
    with lorry.Admin(**fleet.addresses()) as admin:
        return admin.versions(adapter)[0].digest


def children(program, parent):
    """The movers that `parent` started."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[:2] == [str(program).encode(), b"mover"] and f"\nPPid:\t{parent}\n" in (entry / "status").read_text():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_large_image_goes_by_shared_memory_and_is_the_same(fleet, large, mover, bin_dir, monkeypatch):
    before = arrived(fleet)
    publish(fleet, "moved", large)
    after = arrived(fleet)
    assert after["ucx-shm"] - before["ucx-shm"] >= sum(t.nbytes for t in large.state.values())
    assert after["grpc"] == before["grpc"]
    assert not children(bin_dir / "lorry", os.getpid()), "they end with the run"
    monkeypatch.setenv("LORRY_MOVER", "off")
    publish(fleet, "sent", large)
    assert arrived(fleet)["ucx-shm"] == after["ucx-shm"]
    assert digest(fleet, "moved") == digest(fleet, "sent")


def test_a_mover_that_is_killed_costs_nothing_but_time(fleet, large, mover, bin_dir):
    with lorry.open_run("killed", **fleet.addresses()) as run:
        handle = run.publish(large.state, config=large.config, version=1, progress=False)
        (child,) = until(lambda: children(bin_dir / "lorry", os.getpid()), "the mover is there")
        os.kill(child, signal.SIGKILL)
        handle.wait("stored", 60)
    publish(fleet, "whole", large)
    assert digest(fleet, "killed") == digest(fleet, "whole")


def test_a_program_that_cannot_move_is_said_once_and_left(fleet, large, monkeypatch, caplog):
    monkeypatch.setenv("LORRY_MOVER", "/bin/false")
    before = arrived(fleet)
    with lorry.open_run("alone", **fleet.addresses()) as run:
        for number in (1, 2):
            first = next(iter(large.state))
            state = {**large.state, first: large.state[first] * number}
            run.publish(state, config=large.config, version=number, progress=False).wait("stored", 60)
    assert len([r for r in caplog.records if "sent by Python itself" in r.message]) == 1
    assert arrived(fleet)["ucx-shm"] == before["ucx-shm"]


def test_a_mover_that_may_not_read_the_image_is_left_and_the_store_is_not_blamed(bin_dir):
    mover = Mover(str(bin_dir / "lorry"))
    request = {"image": "/proc/self/fd/999", "ticket": "", "addresses": ["grpc://127.0.0.1:1"], "ranges": [(0, 1)]}
    with pytest.raises(MoverGone):
        mover.push(request, 60.0, print)
    mover.close()


TRAINER = """
    import os, sys, numpy as np, lorry
    ones = np.ones((32, 131072), np.float32)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    config = {"peft_type": "LORA", "r": 32, "lora_alpha": 32, "target_modules": ["q_proj"]}
    run = lorry.open_run("orphan", store=sys.argv[1])
    run.publish({name + "A.weight": ones, name + "B.weight": ones.T.copy()}, config=config, version=1).wait("stored", 60)
    if os.fork() == 0:
        while True:
            os.read(0, 1) or os._exit(0)   # a data loader's worker: it lives on, with a copy of every pipe
    print("stored", flush=True)
    sys.stdin.read()
"""


def test_movers_end_with_a_trainer_that_is_killed_and_had_forked(fleet, mover, bin_dir):
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(TRAINER), fleet.addresses()["store"]], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as trainer:
        assert trainer.stdout.readline() == "stored\n"
        pids = children(bin_dir / "lorry", trainer.pid)
        assert len(pids) == 1
        assert [listener for pid in (trainer.pid, *pids) for listener in listeners(pid)] == [], "neither has a port of its own"
        trainer.kill()
        until(lambda: not any(pathlib.Path(f"/proc/{pid}/cmdline").exists() and pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
                              for pid in pids), "the mover ended")
