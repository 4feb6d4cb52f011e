"""A whole run, as it is kept on disk."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from antiphon_server.bench.conditions import cpu_name
from antiphon_server.bench.overhead.contenders import PEER
from antiphon_server.bench.overhead.criteria import Verdict, verdicts
from antiphon_server.bench.overhead.crowds import CrowdPlan, CrowdRow
from antiphon_server.bench.overhead.measure import Plan
from antiphon_server.bench.overhead.record import Row

_OURS = ("antiphon", "uvicorn", "uvloop", "httptools", "msgspec")
_PEERS = (PEER, "granian", "aiohttp", "httpx")


QUIET = 0.1
"""Cores that other programs may use without a word."""


@dataclass(frozen=True, slots=True)
class Machine:
    """``load``: of the minute before. ``versions``: of what was measured."""

    when: str
    cpu: str
    cores: int
    load: float
    python: str
    versions: Mapping[str, str]

    def lines(self) -> tuple[str, str]:
        """For captions."""
        versions = " · ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"{self.cores} cores of {self.cpu}, shared by router, engines and client · loopback · "
            f"load {self.load:g} before · {self.when}",
            f"Python {self.python} · {versions}",
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """``grown``: bytes by which a router grew with so many idle ``conversations``."""

    conversations: int
    grown: int

    @property
    def each(self) -> float:
        """Bytes a conversation."""
        return self.grown / self.conversations


@dataclass(frozen=True, slots=True)
class Report:
    """``memory``: None where it was not measured. ``others``: cores that other programs used meanwhile."""

    machine: Machine
    plan: Plan
    crowd_plan: CrowdPlan
    rows: tuple[Row, ...]
    crowds: tuple[CrowdRow, ...]
    memory: Memory | None
    others: float
    verdicts: tuple[Verdict, ...]

    def captions(self) -> Iterator[str]:
        """How it was measured, and what the words mean."""
        plan, crowd = self.plan, self.crowd_plan
        yield (
            f"Engines answer at once. {plan.rounds} bursts of {plan.seconds:g} s of each contender in each "
            "cell, in turns, closed loop. Latency: to the end of a whole reply, to the first byte of a "
            "stream; added: beyond the same legs without a router."
        )
        if self.crowds:
            yield (
                f"Streams: {crowd.rate:g} chunks/s each, begun together and spread evenly; after "
                f"{crowd.settle:g} s, {crowd.seconds:g} s are counted, and losses throughout. Gap: between "
                "two chunks; delay: from decode to the client."
            )
        if self.others > QUIET:
            yield (
                f"Other programs used {self.others:.2f} cores meanwhile: CPU figures hold, latencies are "
                "worse than routers make them."
            )
        yield from self.machine.lines()


def machine(load: float, peers: Path | None) -> Machine:
    """This one. ``load``: taken before anything was started."""
    versions = {name: metadata.version(name) for name in _OURS}
    if peers is not None:
        versions |= _versions_of(peers)
    return Machine(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        load=round(load, 2),
        python=platform.python_version(),
        versions=versions,
    )


def report(
    machine: Machine,
    plan: Plan,
    crowd_plan: CrowdPlan,
    rows: tuple[Row, ...],
    crowds: tuple[CrowdRow, ...],
    memory: Memory | None,
    others: float,
) -> Report:
    """With its verdicts."""
    return Report(machine, plan, crowd_plan, rows, crowds, memory, others, verdicts(rows, crowds))


def _versions_of(peers: Path) -> dict[str, str]:
    """Of the peers' environment, which has another Python."""
    ask = (
        "import importlib.metadata as m, sys\n"
        "for n in sys.argv[1:]:\n"
        "    try: print(n, m.version(n))\n"
        "    except m.PackageNotFoundError: pass\n"
    )
    python = str(peers / "bin" / "python")
    done = subprocess.run([python, "-c", ask, *_PEERS], capture_output=True, text=True, check=False)
    words = [line.split() for line in done.stdout.splitlines()]
    return {found[0]: found[1] for found in words}
