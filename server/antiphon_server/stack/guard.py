"""Runs one command and leaves nothing of it behind. Started by path, with the standard library only.

    python guard.py LIFELINE GRACE COMMAND...

``LIFELINE`` is the reading end of a pipe whose writing end only the stack holds. When it closes, because the
stack stops or because it was killed, the command is asked to end, and after ``GRACE`` seconds it is killed
with all its descendants. The guard adopts orphans (Linux), so grandchildren and those that left the group are
found too. SIGTERM to the guard kills at once. When the command ends by itself, what it left running is killed
and its exit code returned.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from types import FrameType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.05
LEAVE_S = 2.0
"""What descendants get to end by themselves once the command has."""


def descendants(root: int) -> list[int]:
    """Processes below ``root``, parents first (Linux: read in /proc)."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{entry}/stat") as stat:
                # The name in parentheses may hold blanks and parentheses itself.
                parent = int(stat.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    ring = [root]
    while ring:
        ring = [child for parent in ring for child in children.get(parent, ())]
        found += ring
    return found


def main(lifeline: int, grace: float, command: list[str]) -> int:
    """Exit code of the command, 128 + signal where one ended it."""
    hurried = False

    def hurry(signum: int, frame: FrameType | None) -> None:
        nonlocal hurried
        hurried = True

    signal.signal(signal.SIGTERM, hurry)
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    os.set_inheritable(lifeline, False)
    _prctl(PR_SET_CHILD_SUBREAPER)
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, guard)
    status: int | None = None
    deadline: float | None = None
    while status is None:
        readable, _, _ = select.select([lifeline] if deadline is None else [], [], [], POLL_S)
        if readable:
            deadline = time.monotonic() + grace
            _signal(child, signal.SIGTERM)
        status = _reap(child)
        late = deadline is not None and time.monotonic() >= deadline
        if status is None and (late or hurried):
            _kill(child)
            for orphan in descendants(os.getpid()):
                _signal(orphan, signal.SIGKILL)
    _end_orphans(child)
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _become(command: list[str], guard: int) -> None:
    os.setpgid(0, 0)
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(signum, signal.SIG_DFL)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot start {command[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(127)


def _reap(child: int) -> int | None:
    """The child's status once it has ended; adopted orphans that ended are collected on the way."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == 0:
            return None
        if pid == child:
            return status


def _end_orphans(child: int) -> None:
    deadline = time.monotonic() + LEAVE_S
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            if sys.platform != "linux":  # orphans are not adopted there
                _kill(child)
            return
        if pid:
            continue
        if time.monotonic() >= deadline:
            _kill(child)
            for orphan in descendants(os.getpid()):
                _signal(orphan, signal.SIGKILL)
        time.sleep(POLL_S)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _signal(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def _prctl(option: int, value: int = 1) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
