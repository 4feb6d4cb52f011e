"""The server that tests, simulations and the demo run in their own event loop."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from antiphon_server.simulator import guest
from antiphon_server.simulator.guest import Guest, serving

Events = list[str]


def config(events: Events, **more: Any) -> uvicorn.Config:
    """An application that answers, or never does."""

    async def fine(request: Request) -> Response:
        return PlainTextResponse("fine")

    async def never(request: Request) -> Response:
        events.append("asked")
        try:
            await asyncio.Event().wait()
        finally:
            events.append("cancelled")
        return PlainTextResponse("never")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        events.append("begun")
        yield
        events.append("ended")

    app = Starlette(routes=[Route("/", fine), Route("/never", never)], lifespan=lifespan)
    return uvicorn.Config(app, **{"port": 0, "ws": "none", "log_config": None, **more})


@pytest.mark.parametrize("name", ["capture_signals", "main_loop", "shutdown"])
def test_what_it_overrides_is_what_uvicorn_calls(name: str) -> None:
    theirs, ours = getattr(uvicorn.Server, name), getattr(Guest, name)
    assert list(inspect.signature(theirs).parameters) == list(inspect.signature(ours).parameters)
    assert inspect.iscoroutinefunction(theirs) == inspect.iscoroutinefunction(ours)
    assert f"self.{name}(" in inspect.getsource(uvicorn.Server.serve) + inspect.getsource(
        uvicorn.Server._serve
    )


async def test_it_serves_until_the_block_ends_and_ends_at_once() -> None:
    took = []
    for _ in range(5):
        events: Events = []
        async with httpx.AsyncClient() as client:
            async with serving(config(events)) as url:
                assert (await client.get(url)).text == "fine"
                left = time.perf_counter()
            took.append(time.perf_counter() - left)
            assert events == ["begun", "ended"]
            with pytest.raises(httpx.ConnectError):
                await client.get(url)
    assert min(took) < 0.1  # though the client keeps its connection


async def test_requests_in_flight_have_the_graceful_time() -> None:
    events: Events = []
    async with httpx.AsyncClient() as client:
        async with serving(config(events, timeout_graceful_shutdown=1)) as url:
            asked = asyncio.create_task(client.get(f"{url}/never"))
            async with asyncio.timeout(10):
                while "asked" not in events:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            left = time.perf_counter()
        assert 0.9 < time.perf_counter() - left < 5
        assert (await asked).status_code == 500
        assert "cancelled" in events


async def test_a_server_that_cannot_start_says_so() -> None:
    async with serving(config([])) as url:
        with pytest.raises(RuntimeError, match="cannot start"):
            async with serving(config([], port=httpx.URL(url).port)):
                pytest.fail("it has no port")


async def test_dates_of_replies_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest, "_TICK", 0.01)
    async with serving(config([])) as url, httpx.AsyncClient() as client:

        async def date() -> float:
            return parsedate_to_datetime((await client.get(url)).headers["date"]).timestamp()

        began = await date()
        async with asyncio.timeout(10):
            while await date() == began:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
