"""What is measured side by side, and how each is started."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from antiphon_server.bench.overhead.load import Naming
from antiphon_server.stack.command import ProcessSpec
from antiphon_server.stack.settings import Role

HOST = "127.0.0.1"
OVERHEAD = "antiphon_server.bench.overhead"
PEER = "vllm-router"
SOURCES = Path(__file__).parents[3]


class Kind(StrEnum):
    """What a contender is to the others."""

    DIRECT = "direct"
    LEAST = "pass-through"
    OURS = "antiphon"
    PEER = "peer"


@dataclass(frozen=True, slots=True)
class Contender:
    """``process``: name of the process that serves it; None where the client goes straight to decode.
    ``path``: which every reply has to name. ``legs``: a request's, on prefill and on decode. ``token_ids``:
    prefill gives the prompt's ids to who asks for them."""

    name: str
    kind: Kind
    process: str | None
    naming: Naming = Naming.NONE
    path: str = "none"
    legs: tuple[int, int] = (1, 1)
    token_ids: bool = True

    @property
    def base(self) -> str:
        """The contender without a router that makes the same legs: what is beyond it was added."""
        return BOTH.name if self.legs == BOTH.legs else DIRECT.name


DIRECT = Contender("direct", Kind.DIRECT, None, legs=(0, 1))
LEAST = Contender("pass-through", Kind.LEAST, "pass-through", legs=(0, 1))
BOTH = Contender("direct, both legs", Kind.DIRECT, None)
PAIR = Contender("least P/D", Kind.LEAST, "least P/D")
COLD = Contender("antiphon", Kind.OURS, "antiphon", path="cold")
SHORT = Contender("antiphon (no token ids)", Kind.OURS, "antiphon", path="cold", token_ids=False)
FIRST = Contender("antiphon (first turn)", Kind.OURS, "antiphon", Naming.NEW, path="cold")
REUSE = Contender("antiphon (reuse)", Kind.OURS, "antiphon-reuse", Naming.SAME, path="reuse")
APPEND = Contender("antiphon (append)", Kind.OURS, "antiphon-append", Naming.SAME, path="append", legs=(0, 1))
RIVAL = Contender(PEER, Kind.PEER, PEER)
ALL = (DIRECT, BOTH, LEAST, PAIR, COLD, SHORT, FIRST, REUSE, APPEND, RIVAL)

PROXIES: Mapping[str, tuple[str, str, str]] = {
    "pass-through": ("uvicorn", "own", "raw"),
    "least P/D": ("uvicorn", "own", "raw"),
    "on granian": ("granian", "own", "raw"),
    "by aiohttp": ("uvicorn", "aiohttp", "raw"),
    "by httpx": ("uvicorn", "httpx", "raw"),
    "with orjson": ("uvicorn", "own", "orjson"),
    "with json": ("uvicorn", "own", "stdlib"),
}
"""Proxies of ours: server, client and JSON library of each."""
LIBRARIES = tuple(Contender(name, Kind.LEAST, name) for name in list(PROXIES)[2:])
"""The least P/D proxy with another library in one place."""
FOREIGN = frozenset({"granian", "aiohttp", "httpx"})
"""Libraries that the peers' environment has."""

PATHS: Mapping[str, str] = {
    "antiphon": "cold,reuse,append",
    "antiphon-reuse": "reuse",
    "antiphon-append": "append",
}
"""Paths that each router of ours may take. One alone is taken whatever it is expected to cost."""


def needs_peers(one: Contender) -> bool:
    """It cannot be started without the peers' environment."""
    return one.kind is Kind.PEER or bool(FOREIGN & set(PROXIES.get(one.process or "", ())))


_UNBOUND = {"ANTIPHON_APPEND_SLOWDOWN": "1e6", "ANTIPHON_APPEND_STALL": "1e6"}
"""Appends take nothing from other streams here."""


@dataclass(frozen=True, slots=True)
class Ports:
    """``further``: one for each process, by name; ``metrics``: which the peer wants to open."""

    prefill: int
    decode: int
    further: Mapping[str, int]
    metrics: int

    @property
    def prefill_url(self) -> str:
        """Where prefill serves."""
        return f"http://{HOST}:{self.prefill}"

    def url(self, name: str | None) -> str:
        """Where a process serves; None: decode."""
        return f"http://{HOST}:{self.decode if name is None else self.further[name]}"


def engines(ports: Ports, logs: Path) -> ProcessSpec:
    """Both engines, in one process."""
    argv = (sys.executable, "-m", f"{OVERHEAD}.instant", str(ports.prefill), str(ports.decode))
    url = ports.url(None)
    return ProcessSpec("engines", Role.DECODE, argv, {}, logs / "engines.log", url, f"{url}/health")


def process(name: str, ports: Ports, logs: Path, peers: Path | None) -> ProcessSpec:
    """What serves a contender. ``peers``: the peers' environment."""
    prefill, decode = ports.prefill_url, ports.url(None)
    port, url = str(ports.further[name]), ports.url(name)
    env: dict[str, str] = {}
    health = f"{url}/health"
    if name in PROXIES:
        pieces = PROXIES[name]
        python = sys.executable
        if FOREIGN & set(pieces):
            assert peers is not None
            python = str(peers / "bin" / "python")
            env = {"PYTHONPATH": str(SOURCES)}
        legs = (decode, "" if name == LEAST.process else prefill)
        argv: tuple[str, ...] = (python, "-m", f"{OVERHEAD}.proxy", port, *legs, *pieces)
    elif name == PEER:
        assert peers is not None
        # Round robin is the policy that costs it least; it logs as little as it can.
        argv = (
            *(str(peers / "bin" / "vllm-router"), "--host", HOST, "--port", port, "--vllm-pd-disaggregation"),
            *("--prefill", prefill, "--decode", decode, "--policy", "round_robin"),
            *("--prometheus-port", str(ports.metrics), "--log-level", "error"),
        )
    else:
        argv = (
            *(sys.executable, "-m", "antiphon_server.cli", "router", "--host", HOST, "--port", port),
            *("--prefill", prefill, "--decode", decode, "--log-level", "warning"),
        )
        # Rates of engines that take no time would be measured for nothing.
        env = {"ANTIPHON_PATHS": PATHS[name], "ANTIPHON_CALIBRATE": "false", **_UNBOUND}
        health = f"{url}/ready"
    return ProcessSpec(name, Role.ROUTER, argv, env, logs / f"{name}.log", url, health)
