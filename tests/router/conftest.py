"""A router over simulated engines, all on real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette

from antiphon_server.router.app import create_app
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.state import State
from antiphon_server.simulator import Settings, SimulatedCluster, SimulatedEngine, expected_ids, serve
from antiphon_server.simulator.faults import Fault
from doubles.clock import Clock
from doubles.redis_server import RedisServer
from doubles.routing import serve_router

Message = dict[str, Any]
PATIENCE = 10.0
SYSTEM: Message = {"role": "system", "content": "You are an agent that answers in short letters. " * 3}


@dataclass(frozen=True)
class Answered:
    """What a client got. ``ids``: sampled tokens."""

    status: int
    headers: httpx.Headers
    text: str
    ids: list[int]
    message: Message
    usage: dict[str, Any]
    raw: bytes

    @property
    def reuse(self) -> dict[str, str]:
        return dict(part.strip().split("=") for part in self.headers["x-antiphon-reuse"].split(";"))

    @property
    def path(self) -> str:
        return self.reuse["path"]

    @property
    def reason(self) -> str:
        return self.reuse["reason"]

    @property
    def matched(self) -> int:
        return int(self.reuse["matched"])


@dataclass
class Rig:
    """A running router and its engines."""

    client: httpx.AsyncClient
    state: State
    app: Starlette
    clock: Clock
    prefill: list[SimulatedEngine]
    decode: list[SimulatedEngine]
    stops: dict[int, Callable[[], Awaitable[None]]] = field(default_factory=dict)

    async def kill(self, engine: SimulatedEngine) -> None:
        """End an engine's process."""
        await self.stops.pop(id(engine))()

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        conversation: str | None = None,
        stream: bool = False,
        headers: dict[str, str] | None = None,
        check: bool = True,
        **body: Any,
    ) -> Answered:
        """One chat turn. ``check``: its tokens must be those of full recomputation."""
        request: dict[str, Any] = {
            "model": "simulated",
            "messages": list(messages),
            "return_token_ids": True,
            **body,
        }
        if conversation is not None:
            request["conversation_id"] = conversation
        if stream:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        reply = await self.client.post("/v1/chat/completions", json=request, headers=headers)
        answered = _streamed(reply) if stream and reply.status_code == 200 else _whole(reply)
        if check:
            assert answered.status == 200, reply.text
            assert answered.ids == expected_ids(self.decode[0].settings, request)
        return answered

    def legs(self, engine: SimulatedEngine) -> list[dict[str, Any]]:
        """Bodies of the legs an engine was sent."""
        return [r.body for r in engine.requests if r.path.startswith("/v1/")]

    def count(self, name: str, **labels: str) -> float:
        """A value of the router's metrics."""
        return self.state.metrics.registry.get_sample_value(name, labels) or 0.0


def _whole(reply: httpx.Response) -> Answered:
    body = reply.json()
    choice = body["choices"][0] if "choices" in body else {"message": {}, "token_ids": []}
    message = choice.get("message", {})
    text = message.get("content") or choice.get("text") or ""
    return Answered(
        reply.status_code,
        reply.headers,
        text,
        choice.get("token_ids") or [],
        message,
        body.get("usage", {}),
        reply.content,
    )


def _streamed(reply: httpx.Response) -> Answered:
    events = [line[6:] for line in reply.text.split("\n\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]", reply.text
    chunks = [json.loads(event) for event in events[:-1]]
    text = ""
    ids: list[int] = []
    usage: dict[str, Any] = {}
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            text += (choice.get("delta") or {}).get("content") or choice.get("text") or ""
            ids += choice.get("token_ids") or []
    message = {"role": "assistant", "content": text}
    return Answered(reply.status_code, reply.headers, text, ids, message, usage, reply.content)


Start = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start engines and a router. ``prefills``, ``decodes``: how many; the others: their settings."""
    engines: list[AsyncExitStack] = []
    async with AsyncExitStack() as stack:

        async def start(
            *,
            prefills: int = 1,
            decodes: int = 1,
            prefill: dict[str, Any] | None = None,
            decode: dict[str, Any] | None = None,
            router: dict[str, Any] | None = None,
        ) -> Rig:
            cluster, clock = SimulatedCluster(), Clock()
            given: dict[str, Any] = {
                "role": "prefill",
                "threshold": 0,
                "prefix_caching": False,
                **(prefill or {}),
            }
            ps = [SimulatedEngine(Settings(**given), clock=clock, cluster=cluster) for _ in range(prefills)]
            given = {"role": "decode", **(decode or {})}
            ds = [SimulatedEngine(Settings(**given), clock=clock, cluster=cluster) for _ in range(decodes)]
            urls: dict[int, str] = {}
            stops: dict[int, Callable[[], Awaitable[None]]] = {}
            for engine in [*ps, *ds]:
                own = AsyncExitStack()
                engines.append(own)
                urls[id(engine)] = await own.enter_async_context(serve(engine))
                stops[id(engine)] = own.aclose
            settings = RouterSettings(
                prefill=[urls[id(e)] for e in ps],
                decode=[urls[id(e)] for e in ds],
                **{"paths": ["reuse"], "calibrate": False, **(router or {})},
            )
            app = create_app(settings, clock=clock)
            url = await stack.enter_async_context(serve_router(app))
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=PATIENCE))
            state = cast("State", app.state.router)
            while not all(worker.healthy for worker in state.workers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return Rig(client, state, app, clock, ps, ds, stops)

        yield start
    await asyncio.gather(*(engine.aclose() for engine in engines))


@pytest.fixture
def serve_app() -> Callable[[Starlette], AbstractAsyncContextManager[str]]:
    """Serve a router on a real socket; yields its URL."""
    return serve_router


Settled = Callable[[Callable[[], object]], Awaitable[None]]


@pytest.fixture
def settled() -> Settled:
    """Wait until a condition holds; fail when it does not within some seconds."""

    async def wait(condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "the condition never came true"
            await asyncio.sleep(0.005)

    return wait


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def fault() -> type[Fault]:
    return Fault


def _turn(question: str) -> list[Message]:
    return [SYSTEM, {"role": "user", "content": question}]


@pytest.fixture
def opening() -> list[Message]:
    """The first turn's messages."""
    return _turn("Name the first letters, please, and take your time about it.")
