"""What several packages' tests share: a router over simulated engines, in a thread of their own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings

from antiphon_server.router.app import create_app
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.simulator import Settings, SimulatedCluster, SimulatedEngine, serve
from doubles.routing import serve_router

# The same examples on every run; other ones are looked for by `make fuzz`.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")


@dataclass(frozen=True)
class SimulatedStack:
    """For code that blocks: its servers have an event loop of their own. ``router``: the first one;
    ``routers``: all, by name."""

    router: str
    routers: dict[str, str]
    prefill_url: str
    decode_url: str
    prefill: SimulatedEngine
    decode: SimulatedEngine


class _Background:
    """Runs a stack until it is told to end."""

    def __init__(self, prefill: Settings, decode: Settings, routers: dict[str, dict[str, Any]]) -> None:
        self._settings = (prefill, decode, routers)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="simulated-stack")
        self._stack: SimulatedStack | None = None

    def start(self) -> SimulatedStack:
        self._thread.start()
        assert self._ready.wait(30), "the simulated stack does not start"
        assert self._stack is not None
        return self._stack

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)
        assert not self._thread.is_alive(), "the simulated stack does not end"

    async def _run(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        cluster = SimulatedCluster()
        prefill, decode = (SimulatedEngine(own, cluster=cluster) for own in self._settings[:2])
        try:
            async with serve(prefill) as p_url, serve(decode) as d_url, contextlib.AsyncExitStack() as ends:
                urls: dict[str, str] = {}
                for name, own in self._settings[2].items():
                    router = {"paths": ["reuse"], "calibrate": False, **own}
                    app = create_app(RouterSettings(prefill=[p_url], decode=[d_url], **router))
                    urls[name] = await ends.enter_async_context(serve_router(app))
                first = next(iter(urls.values()))
                self._stack = SimulatedStack(first, urls, p_url, d_url, prefill, decode)
                self._ready.set()
                await self._end.wait()
        finally:
            self._ready.set()


StartStack = Callable[..., SimulatedStack]


@contextlib.contextmanager
def _stacks() -> Iterator[StartStack]:
    with contextlib.ExitStack() as ends:

        def start(
            *,
            prefill: dict[str, Any] | None = None,
            decode: dict[str, Any] | None = None,
            router: dict[str, Any] | None = None,
            routers: dict[str, dict[str, Any]] | None = None,
        ) -> SimulatedStack:
            given: dict[str, Any] = {"role": "prefill", "prefix_caching": False, "threshold": 0}
            background = _Background(
                Settings(**{**given, **(prefill or {})}),
                Settings(**{"role": "decode", **(decode or {})}),
                routers or {"router": router or {}},
            )
            ends.callback(background.stop)
            return background.start()

        yield start


@pytest.fixture
def simulated_stack() -> Iterator[StartStack]:
    """Starts one: ``prefill``, ``decode`` and ``router`` are settings; ``routers``: of several, by name."""
    with _stacks() as start:
        yield start


@pytest.fixture(scope="module")
def idle_stack() -> Iterator[SimulatedStack]:
    """One for all tests of a module that ask no turn of it."""
    with _stacks() as start:
        yield start()
