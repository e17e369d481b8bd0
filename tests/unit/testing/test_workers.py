"""Threads that work from enter to exit: none that hangs, and no request that nobody answers, passes for one that saw nothing wrong."""

import socket
import threading
import types

import pytest
from testing import doors
from testing.waiting import until
from testing.workers import Workers
from testing.world import Traffic


@pytest.fixture
def hangs():
    """Work that does not end while the test runs."""
    released = threading.Event()
    yield released.wait
    released.set()


def test_all_that_end_are_at_an_end():
    with Workers(lambda: None, lambda: None, join_s=60.0) as workers:
        pass
    assert workers.at_work() == 0


def test_one_that_hangs_is_raised_by_the_exit(hangs):
    with pytest.raises(AssertionError, match="1 of 2 threads hang"), Workers(hangs, lambda: None, join_s=0.1):
        pass


def test_what_was_raised_before_is_what_is_raised(hangs):
    with pytest.raises(KeyError), Workers(hangs, join_s=0.1):
        raise KeyError("the block's own")


def test_an_owner_who_tells_of_those_that_hang_is_asked_to(hangs):
    with Workers(hangs, join_s=0.1, told_of=True) as workers:
        pass
    assert workers.at_work() == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_request_that_no_door_answers_is_raised_by_the_exit(monkeypatch):
    monkeypatch.setattr(doors, "DEADLINE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        door = doors.DoorClient("vllm", f"http://127.0.0.1:{silent.getsockname()[1]}")
        world = types.SimpleNamespace(doors={"vllm": door})
        with pytest.raises(TimeoutError), Traffic(world, workers=1) as traffic:
            until(lambda: traffic.at_work() == 0, "it gives up", 20.0)
