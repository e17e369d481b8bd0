"""Runs the demo's work in a process of its own, and ends whatever is left of it: when the work is over, and when a signal asks.

The work itself cannot do that. An exception raised by a signal's handler unwinds a program from wherever it is: in the middle of
starting an engine, which nobody would end then, or inside a lock or a destructor, where it is lost and the program goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

TO_GO = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
# SIGTERM lets engines remove their shared memory, and doors end what they answer; what still runs after this is killed.
GRACE_S = 10.0
SHOW_CURSOR = "\033[?25h\n"
PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    # Whoever loses its parent becomes a child of this process, so that none gets away.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lorry-demo-"))
    signal.pthread_sigmask(signal.SIG_BLOCK, TO_GO | {signal.SIGCHLD})
    work = [sys.executable, "-B", "-m", "demo.work", "--folder", os.fspath(folder), *sys.argv[1:]]
    # A group of its own: Ctrl-C is for this process alone.
    pid = os.posix_spawn(work[0], work, os.environ, setpgroup=0, setsigmask=[])
    told = wait_for(pid)
    if told:
        if sys.stdout.isatty():
            print(SHOW_CURSOR, end="", flush=True)  # the work may have hidden it
        os.kill(pid, signal.SIGKILL)  # first of all: it would start further processes
    ended = os.waitid(os.P_PID, pid, os.WEXITED)
    end_children(GRACE_S)
    for images in pathlib.Path("/dev/shm").glob(f"lorry-{pid}-*"):
        shutil.rmtree(images, ignore_errors=True)
    if told and not keeps():
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.rmdir()  # where the work ended before it began, at words that it does not know
    if told:
        return 128 + told
    return ended.si_status if ended is not None and ended.si_code == os.CLD_EXITED else 1


def keeps() -> bool:
    """Of the work's own words (work.py), and as it reads them: also shortened."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--keep", action="store_true")
    return parser.parse_known_args()[0].keep


def wait_for(pid: int) -> int:
    """The signal that asked to go, or 0 where the work ended before."""
    while (number := signal.sigwait(TO_GO | {signal.SIGCHLD})) not in TO_GO:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return 0
    return number


def end_children(grace_s: float) -> None:
    """Ends all that was started and still runs. What is left when its parent ends is found in the next round."""
    began = time.monotonic()
    told: set[int] = set()
    while reap() and (passed_s := time.monotonic() - began) < 2 * grace_s:
        for child in children():
            numbers = [signal.SIGKILL] if passed_s > grace_s else [] if child in told else [signal.SIGCONT, signal.SIGTERM]
            told.add(child)
            for number in numbers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, number)
        time.sleep(0.02)


def reap() -> bool:
    """Takes note of those that ended. False once there are no others."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def children() -> set[int]:
    found = set()
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
