"""Process 1 of a container: the kernel gives it no default way to end on a signal, and all orphans.

An engine that is still loading has not set up its handlers; as process 1 it would ignore being asked to stop
until its container is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NoReturn

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def is_first() -> bool:
    """Whether this process is the first one of a container."""
    return os.getpid() == 1


def end_when_asked() -> None:
    """SIGTERM ends this process, until it supervises one that is to end by itself."""

    def end(signum: int, frame: FrameType | None) -> NoReturn:
        sys.exit(128 + signum)

    signal.signal(signal.SIGTERM, end)


def supervise(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command, pass signals on to it and collect what it leaves behind. Its exit code, 128 + signal
    where one ended it; the kernel ends the rest with process 1."""
    # Held back until there is somebody to pass them to.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    child = os.fork()
    if child == 0:
        _become(argv, env, before)

    def forward(signum: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signum)

    for signum in FORWARDED:
        signal.signal(signum, forward)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _become(argv: Sequence[str], env: Mapping[str, str], mask: set[int | signal.Signals]) -> NoReturn:
    try:
        for signum in FORWARDED:
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execve(argv[0], list(argv), dict(env))
    except OSError as error:
        os.write(2, f"cannot start {argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)
