"""Forks vLLM engines from a process that has imported vLLM once: a start takes 4 seconds of CPU, not 30.

    python nursery.py

Reads a line of JSON for each engine, ``{"argv": [...], "env": {...}, "log": path}``, and answers with the
pid of its API server, which leads a process group of its own. ``{"reap": pid}`` waits until nothing of that
group is left. All engines die with the nursery, which ends when its input does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import sys
import time
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Serve until the end of the input."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    import vllm.entrypoints.launchers.api_server.entry
    import vllm.v1.engine.async_llm
    import vllm.v1.engine.core
    import vllm.v1.worker.cpu_worker  # noqa: F401

    groups: list[int] = []
    tell("ready")
    for line in sys.stdin:
        asked = json.loads(line)
        if "reap" in asked:
            reap(asked["reap"])
            tell("gone")
            continue
        pid = os.fork()
        if pid == 0:
            become(asked)
        groups.append(pid)
        tell(pid)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        reap(group)


def become(asked: dict[str, Any]) -> NoReturn:
    """Turn into the API server of an engine, whose core forks from it too."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(descriptor, target)
    os.environ.update(asked["env"])
    sys.argv = ["vllm", *asked["argv"]]
    from vllm.entrypoints.launchers.api_server.entry import main as serve
    from vllm.v1.engine import utils

    # On a CPU vLLM asks for "spawn", which imports everything anew. A fork is safe: nothing has computed yet.
    utils.get_mp_context = lambda: multiprocessing.get_context("fork")
    try:
        serve()
    finally:
        os._exit(1)


def reap(group: int) -> None:
    """Wait for all members of a group."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)


def tell(answer: object) -> None:
    """One line of JSON."""
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
