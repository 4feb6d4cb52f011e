"""An engine's steps, as continuous batching takes them: each gives every running sequence its next token and
computes a chunk of the prompts that wait, so that a prompt slows down the streams beside it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Prompt:
    left: int
    done: asyncio.Future[None]


class Steps:
    """``base``: seconds of a step. ``rate``: prompt tokens a second on top of it; 0: at once. ``chunk``: the
    most prompt tokens of one step."""

    def __init__(
        self, base: float, rate: float, chunk: int, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self._base = base
        self._rate = rate
        self._chunk = chunk
        self._sleep = sleep
        self._streams: list[asyncio.Future[None]] = []
        self._prompts: deque[_Prompt] = deque()
        self._waiting = 0
        self._running: asyncio.Task[None] | None = None

    async def token(self) -> None:
        """Until the next step has given this sequence its token."""
        done = asyncio.get_running_loop().create_future()
        self._streams.append(done)
        await self._until(done)

    async def prompt(self, tokens: int) -> None:
        """Until so many tokens of a prompt are computed, first come, first served."""
        done = asyncio.get_running_loop().create_future()
        self._prompts.append(_Prompt(tokens, done))
        await self._until(done)

    async def _until(self, done: asyncio.Future[None]) -> None:
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        self._waiting += 1
        try:
            await done
        except asyncio.CancelledError:
            if self._waiting == 1 and self._running is not None:
                self._running.cancel()
                self._running = None
            raise
        finally:
            self._waiting -= 1

    async def _run(self) -> None:
        while self._streams or self._prompts:
            streams, self._streams = self._streams, []
            computed, ready = self._take()
            if computed or ready or any(not stream.done() for stream in streams):
                await self._sleep(self._base + (computed / self._rate if self._rate else 0.0))
            for future in [*streams, *ready]:
                if not future.done():
                    future.set_result(None)
            await asyncio.sleep(0)  # those that go on are part of the next step
            await asyncio.sleep(0)

    def _take(self) -> tuple[int, list[asyncio.Future[None]]]:
        """Prompt tokens of one step, and whose prompts end with it."""
        room, ready = self._chunk, list[asyncio.Future[None]]()
        while self._prompts:
            first = self._prompts[0]
            part = 0 if first.done.cancelled() else min(room, first.left)
            first.left -= part
            room -= part
            if first.left and not first.done.cancelled():
                break
            self._prompts.popleft()
            if not first.done.cancelled():
                ready.append(first.done)
        return self._chunk - room, ready
