"""Stands for an engine: a process with two children that have one child each, five in all.

``process_tree.py polite|stubborn [EXIT_CODE]``: each writes its pid to stdout and sleeps; all but a polite
root ignore SIGTERM. With an exit code the root ends by itself once all others have written theirs.
"""

from __future__ import annotations

import os
import signal
import sys
import time

MEMBERS = 5


def _tell() -> None:
    os.write(1, b"%d\n" % os.getpid())


def _child(detached: bool) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if detached:
        os.setsid()
    if os.fork() == 0:
        os.setpgid(0, 0)
    _tell()
    time.sleep(600)


def main(manners: str, exit_code: str | None = None) -> None:
    polite = manners == "polite"
    signal.signal(signal.SIGTERM, (lambda *_: sys.exit(0)) if polite else signal.SIG_IGN)
    for detached in (False, True):
        if os.fork() == 0:
            _child(detached)
            os._exit(0)
    _tell()
    if exit_code is not None:
        while len(_written()) < MEMBERS:
            time.sleep(0.01)
        sys.exit(int(exit_code))
    time.sleep(600)


def _written() -> list[bytes]:
    with open("/proc/self/fd/1", "rb") as log:
        return log.read().split()


if __name__ == "__main__":
    main(*sys.argv[1:])
