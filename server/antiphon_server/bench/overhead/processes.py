"""The processes of a run: started, waited for, asked what they cost, ended."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import psutil

from antiphon_server.bench.overhead.contenders import Ports
from antiphon_server.stack.command import ProcessSpec
from antiphon_server.stack.ports import free, search
from antiphon_server.stack.process import Process

START_S = 60.0
GRACE_S = 5.0
_POLL_S = 0.05
_BASE = 18600
_FILES = 16384


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds: the clock, CPU of the whole machine, CPU of this process and those it has started."""

    clock: float
    machine: float
    ours: float

    def others(self, since: Usage) -> float:
        """Cores that others have used since then, on average."""
        seconds = max(self.clock - since.clock, 1e-9)
        return max(0.0, (self.machine - since.machine - self.ours + since.ours) / seconds)


class StartError(RuntimeError):
    """A process does not come up; the message has the end of its log."""


class Running:
    """Started processes by name."""

    def __init__(self) -> None:
        self._processes: dict[str, Process] = {}
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith("ANTIPHON_")}

    def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Start these side by side; returns when all answer.

        Raises:
            StartError
        """
        for spec in specs:
            self._processes[spec.name] = Process(spec, grace=GRACE_S, environ=self._environ)
        end = time.monotonic() + START_S
        with httpx.Client(timeout=5.0, trust_env=False) as http:
            for spec in specs:
                while not _answers(http, spec.health):
                    self.check()
                    if time.monotonic() > end:
                        raise StartError(self._told(spec.name, f"does not answer within {START_S:g} s"))
                    time.sleep(_POLL_S)

    def check(self) -> None:
        """Raise StartError where one has ended."""
        if told := self.ended():
            raise StartError(told)

    def ended(self) -> str | None:
        """Which one has ended by itself, and its last words; None while all run."""
        for name, process in self._processes.items():
            if process.returncode is not None:
                return self._told(name, f"ended with exit code {process.returncode}")
        return None

    def cpu(self, name: str) -> float:
        """Seconds of CPU that a process and all below it have used so far."""
        return sum(sum(process.cpu_times()[:2]) for process in self._below(name))

    def usage(self) -> Usage:
        """What has been used of the machine until now."""
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        ours = sum(map(self.cpu, self._processes)) + time.process_time()
        return Usage(time.monotonic(), sum(times) - idle, ours)

    def _below(self, name: str) -> list[Any]:
        # The guard itself does nothing but wait.
        return list(psutil.Process(self._processes[name].pid).children(recursive=True))

    def _told(self, name: str, how: str) -> str:
        return f"{name} {how}. Its log ends with:\n{self._processes[name].tail()}"

    def stop(self) -> None:
        """End all of them. Idempotent."""
        for process in reversed(self._processes.values()):
            process.ask_to_stop()
        for process in self._processes.values():
            process.wait_stopped()
        self._processes.clear()


@contextlib.contextmanager
def running() -> Iterator[Running]:
    """Processes that end with the block, however it ends."""
    processes = Running()
    try:
        yield processes
    finally:
        processes.stop()


def ports(names: Sequence[str]) -> Ports:
    """Free ones.

    Raises:
        PortError: none are.
    """
    taken: set[int] = set()
    prefill, decode, metrics = (search(_BASE, free, taken) for _ in range(3))
    return Ports(prefill, decode, {name: search(_BASE, free, taken) for name in names}, metrics)


def allow_many_files() -> int:
    """Raise this process's limit of open files, and so its children's; what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft if soft != resource.RLIM_INFINITY else _FILES


def _answers(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(url).status_code == 200
    except httpx.TransportError:
        return False
