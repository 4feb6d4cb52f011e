"""Python loads this first: the program may then reach this machine and nothing else, not even a resolver.

What it tries beside that fails, and is told at its end by exit status 97.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
from typing import Any

_NAMES = frozenset({"127.0.0.1", "::1", "localhost", None})
_elsewhere: list[object] = []


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if event == "socket.getaddrinfo":
        asked = args[0].decode() if isinstance(args[0], bytes) else args[0]
    elif event == "socket.connect" and args[0].family in (socket.AF_INET, socket.AF_INET6):
        asked = args[1][0]
    else:
        return
    if asked not in _NAMES:
        _elsewhere.append(asked)
        raise ConnectionRefusedError(f"this test reaches loopback only, not {asked!r}")


def _tell() -> None:
    if _elsewhere:
        sys.stderr.write(f"tried to reach {_elsewhere}\n")
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(97)


atexit.register(_tell)
sys.addaudithook(_watch)
