"""What an engine costs the machine while nobody asks it anything."""

from __future__ import annotations

import itertools
import time
from urllib.parse import urlsplit

import psutil


def engine_processes(url: str) -> list[psutil.Process]:
    """The API server that serves ``url`` and all its descendants."""
    port = str(urlsplit(url).port)
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        serves = ("--port", port) in itertools.pairwise(words)
        if serves and words[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]:
            return [process, *process.children(recursive=True)]
    raise LookupError(f"no engine serves {url}")


def cores_used(url: str, seconds: float) -> float:
    """Mean number of cores that the engine keeps busy over the next ``seconds``."""
    processes = engine_processes(url)
    before = _cpu_seconds(processes)
    time.sleep(seconds)
    return (_cpu_seconds(processes) - before) / seconds


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)
