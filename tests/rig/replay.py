"""Replays recorded sessions against a router over simulated engines, all in one process and on counted time.

Sockets and real time would make the figures those of a busy test machine; here they are the model's.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock
from uuid import UUID

import uvicorn
from starlette.types import ASGIApp, Message
from uvicorn.server import ServerState

from antiphon_server.bench.replay.history import History
from antiphon_server.bench.replay.script import Script, Turn
from antiphon_server.bench.timing import Answer
from antiphon_server.quantiles import quantile
from antiphon_server.router.app import create_app
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.simulator import Received, Settings, SimulatedCluster, SimulatedEngine, expected_ids
from antiphon_server.simulator import app as engine_app
from antiphon_server.simulator.leases import Leases
from antiphon_server.simulator.serve import _Protocol
from doubles.memory_network import MemoryNetwork
from doubles.virtual_loop import VirtualLoop
from rig.traces import BLOCK, RULER

PORT = 8000
SPEED: dict[str, Any] = {
    "block_size": BLOCK,
    "prefill_rate": 1000.0,
    "chunk": 256,
    "decode_rate": 25.0,
    "transfer_rate": 10_000.0,
    "threshold": 0,
}
"""In tokens, of which each stands for four of the trace's."""
PREFILL_BLOCKS = 4096
DECODE_BLOCKS = 8192
SETTLING = 60.0
"""Seconds before the first turn: calibration is over then."""


class _Forgetful(list[Received]):
    def append(self, _: Received) -> None:
        pass


class LeaseBook(Leases):
    """``most``: blocks that were ever pinned at once. They grow only where a lease is granted."""

    most = 0

    def grant(self, request_id: str, blocks: list[int], deadline: float) -> None:
        super().grant(request_id, blocks, deadline)
        self.most = max(self.most, self.blocks)


@dataclass(frozen=True, slots=True)
class Served:
    """A turn's outcome. Seconds. ``pace``: between two tokens of its answer, None for one of a single
    token."""

    session: str
    index: int
    path: str
    reason: str
    ttft: float
    pace: float | None
    prompt: int
    cached: int
    answer: str
    ids: tuple[int, ...]


@dataclass(slots=True)
class Outcome:
    """``most``, ``budget``: tokens pinned on each decode engine."""

    turns: dict[tuple[str, int], Served] = field(default_factory=dict, repr=False)
    most: list[int] = field(default_factory=list)
    budget: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def ttft(self) -> list[float]:
        return sorted(turn.ttft for turn in self.turns.values())

    @property
    def mean(self) -> float:
        """TTFT."""
        return math.fsum(self.ttft()) / len(self.turns)

    def quantile(self, share: float) -> float:
        """TTFT that this share of the turns does not exceed."""
        return quantile((turn.ttft for turn in self.turns.values()), share, math.nan)

    @property
    def pace(self) -> float:
        """Inter-token latency, mean over the streams."""
        known = [turn.pace for turn in self.turns.values() if turn.pace is not None]
        return math.fsum(known) / len(known)

    def share(self, path: str) -> float:
        """Of the turns, that took a path."""
        return sum(turn.path == path for turn in self.turns.values()) / len(self.turns)


@dataclass
class Fleet:
    """So many engines of each kind, of which a router knows."""

    prefills: int = 2
    decodes: int = 2
    seed: int = 1
    prefill: dict[str, Any] = field(default_factory=dict)
    decode: dict[str, Any] = field(default_factory=dict)

    def replay(self, sessions: Sequence[Script], window: float, **router: Any) -> Outcome:
        """Every session once; they begin at random within ``window`` seconds. ``router``: its settings."""
        source, state = random.Random(self.seed), random.getstate()
        random.seed(self.seed)

        def uuid() -> UUID:
            return UUID(int=source.getrandbits(128), version=4)

        network = MemoryNetwork()
        loop = VirtualLoop(network)
        try:
            with (
                mock.patch("antiphon_server.simulator.engine.uuid4", uuid),
                asyncio.Runner(loop_factory=lambda: loop) as runner,
            ):
                return runner.run(self._replay(sessions, window, network, router))
        finally:
            random.setstate(state)
            gc.collect()

    async def _replay(
        self, sessions: Sequence[Script], window: float, network: MemoryNetwork, router: dict[str, Any]
    ) -> Outcome:
        loop, cluster = asyncio.get_running_loop(), SimulatedCluster()
        prefill = {"role": "prefill", "capacity": PREFILL_BLOCKS, **SPEED, **self.prefill}
        decode = {"role": "decode", "capacity": DECODE_BLOCKS, **SPEED, **self.decode}
        named = {f"p{i}": prefill for i in range(self.prefills)} | {
            f"d{i}": decode for i in range(self.decodes)
        }
        engines: dict[str, SimulatedEngine] = {}
        for name, own in named.items():
            engine = engines[name] = SimulatedEngine(
                Settings(**own), clock=loop.time, cluster=cluster, requests=_Forgetful()
            )
            engine._leases = LeaseBook(engine._pool, engine.settings.longest_lease)
            network.listen((name, PORT), _listener(engine))
        settings = RouterSettings(
            prefill=[f"http://{name}:{PORT}" for name in engines if name.startswith("p")],
            decode=[f"http://{name}:{PORT}" for name in engines if name.startswith("d")],
            probe_interval=30.0,
            pressure_interval=5.0,
            **router,
        )
        app = create_app(settings, clock=loop.time)
        outcome = Outcome()
        async with app.router.lifespan_context(app):
            await asyncio.sleep(SETTLING)
            began = loop.time()
            starts = random.Random(self.seed)
            await asyncio.gather(
                *(_play(app, session, starts.uniform(0.0, window), outcome) for session in sessions)
            )
            outcome.seconds = loop.time() - began
            for name, engine in engines.items():
                if name.startswith("d"):
                    book = engine._leases
                    assert isinstance(book, LeaseBook)
                    outcome.most.append(book.most * BLOCK)
                    outcome.budget.append(int(engine.settings.capacity * BLOCK * settings.keep_share))
        return outcome


def _listener(engine: SimulatedEngine) -> Any:
    config = uvicorn.Config(
        engine_app(engine), ws="none", lifespan="off", log_config=None, log_level="critical", access_log=False
    )
    config.load()
    state = ServerState()
    return lambda: _Protocol(config, state, {}, asyncio.get_running_loop())


async def _play(app: ASGIApp, session: Script, start: float, outcome: Outcome) -> None:
    await asyncio.sleep(start)
    history = History(RULER)
    for index, turn in enumerate(session.turns):
        if index:
            await asyncio.sleep(turn.gap)
        served = await _ask(app, session.name, index, request(history, turn))
        outcome.turns[session.name, index] = served
        history.end(Answer(served.ids, served.answer), served.prompt)


def request(history: History, turn: Turn) -> dict[str, Any]:
    """Body of a turn's request, but for its conversation."""
    return {
        "model": "simulated",
        "messages": history.begin(turn),
        "max_tokens": turn.answer,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


def truth(session: Script, settings: Settings, answers: Sequence[Served]) -> list[list[int]]:
    """The answers of full recomputation, given what was said before."""
    history, found = History(RULER), []
    for turn, served in zip(session.turns, answers, strict=True):
        found.append(expected_ids(settings, request(history, turn)))
        history.end(Answer(served.ids, served.answer), served.prompt)
    return found


async def _ask(app: ASGIApp, session: str, index: int, body: dict[str, Any]) -> Served:
    loop = asyncio.get_running_loop()
    data = json.dumps({**body, "conversation_id": session}).encode()
    sent, over = False, asyncio.Event()
    headers: dict[str, str] = {}
    parts: list[bytes] = []
    times: list[float] = []

    async def receive() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": data, "more_body": False}
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200, message
            headers.update((name.decode(), value.decode()) for name, value in message["headers"])
            return
        part = message.get("body", b"")
        parts.append(part)
        if b'"delta"' in part:
            times.append(loop.time())
        if not message.get("more_body", False):
            over.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())],
        "client": ("client", 1),
        "server": ("router", PORT),
        "state": {},
    }
    began = loop.time()
    await app(scope, receive, send)
    reuse = dict(part.strip().split("=") for part in headers["x-antiphon-reuse"].split(";"))
    text, ids, usage = _read(b"".join(parts))
    return Served(
        session,
        index,
        reuse["path"],
        reuse["reason"],
        times[0] - began,
        (times[-1] - times[0]) / (len(ids) - 1) if len(ids) > 1 else None,
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        text,
        tuple(ids),
    )


def _read(stream: bytes) -> tuple[str, list[int], dict[str, Any]]:
    events = [event[6:] for event in stream.decode().split("\n\n") if event.startswith("data: {")]
    text, ids, usage = "", list[int](), dict[str, Any]()
    for event in map(json.loads, events):
        assert "error" not in event, event
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            ids += choice.get("token_ids") or []
    assert stream.endswith(b"data: [DONE]\n\n"), stream[-200:]
    return text, ids, usage
