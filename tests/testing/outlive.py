"""Ends whatever is left of a program: when it has ended, and when a signal asks.

The program itself cannot do that. An exception raised by a signal's handler unwinds it from wherever it is: in the middle of starting
a process, which nobody would end then, or inside a lock or a destructor, where it is lost and the program goes on. So it runs in a process of its
own, and another waits beside it that does nothing else:

    outlive.guard()      # at the beginning of a program: the rest of it runs in a child
    outlive.run(words)   # another program, to its end
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import sys
import time

# SIGTERM lets engines remove their shared memory, and doors end what they answer; what still runs after this is killed.
GRACE_S = 10.0
_ASKED = {signal.SIGTERM, signal.SIGHUP}
_WITH_CTRL_C = _ASKED | {signal.SIGINT}
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36


def run(words: list[str]) -> tuple[int, int]:
    """Its exit status, 1 where it was killed; and the signal that asked to go, 0 for none. Ctrl-C is for this process alone."""
    mask = _begin()
    return _outlive(os.posix_spawn(words[0], words, os.environ, setpgroup=0, setsigmask=mask), _WITH_CTRL_C)


def guard(heeds_ctrl_c: bool = False) -> None:
    """Returns in a child. This process ends as that does, or with 128 and the number of the signal that asked.

    `heeds_ctrl_c`: the program does, and may read from the terminal; else Ctrl-C, too, ends it at once.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    mask, parent = _begin(), os.getpid()
    pid = os.fork()
    if pid != 0:
        status, told = _outlive(pid, _ASKED if heeds_ctrl_c else _WITH_CTRL_C)
        os._exit(128 + told if told else status)
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it was killed before that
    if not heeds_ctrl_c:
        os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _begin() -> set[int]:
    """Before the program is there. The mask of signals that it shall have."""
    # Whoever loses its parent becomes a child of this process, so that none gets away.
    _prctl(_SET_CHILD_SUBREAPER, 1)
    return signal.pthread_sigmask(signal.SIG_BLOCK, _WITH_CTRL_C | {signal.SIGCHLD})


def _outlive(pid: int, asked: set[int]) -> tuple[int, int]:
    told = _wait_for(pid, asked)
    if told:
        os.kill(pid, signal.SIGKILL)  # first of all: it would start further processes
    ended = os.waitid(os.P_PID, pid, os.WEXITED)
    _end_children(GRACE_S)
    for images in pathlib.Path("/dev/shm").glob(f"lorry-{pid}-*"):
        shutil.rmtree(images, ignore_errors=True)
    return ended.si_status if ended is not None and ended.si_code == os.CLD_EXITED else 1, told


def _wait_for(pid: int, asked: set[int]) -> int:
    """The signal that asked to go, or 0 where the program ended before."""
    while (number := signal.sigwait(asked | {signal.SIGCHLD})) not in asked:
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == pid:
                return 0
            os.waitpid(ended.si_pid, 0)  # somebody who had lost its parent
    return number


def _end_children(grace_s: float) -> None:
    """Ends all that was started and still runs. What is left when its parent ends is found in the next round."""
    began = time.monotonic()
    told: set[int] = set()
    while _reap() and (passed_s := time.monotonic() - began) < 2 * grace_s:
        for child in _children():
            numbers = [signal.SIGKILL] if passed_s > grace_s else [] if child in told else [signal.SIGCONT, signal.SIGTERM]
            told.add(child)
            for number in numbers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, number)
        signal.sigtimedwait({signal.SIGCHLD}, 0.02)


def _reap() -> bool:
    """Takes note of those that ended. False once there are no others."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def _children() -> set[int]:
    found = set()
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
