"""An engine's steps in the way of continuous batching: each gives every stream its next token and computes a
chunk of the prompts that wait, first come, first served. Steps without a prompt are taken many at a time."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from antiphon_server.bench.simulate.rates import RateModel


@dataclass(slots=True)
class _Prompt:
    new: int
    before: int
    done: Callable[[], None]


class Steps:
    """``busy``: seconds with anything to do; ``computing``: those of them that prompts took."""

    def __init__(self, model: RateModel, loop: asyncio.AbstractEventLoop) -> None:
        self.busy = 0.0
        self.computing = 0.0
        self._model = model
        self._loop = loop
        self._prompts: deque[_Prompt] = deque()
        self._streams: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._taken = 0
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._each = 0.0
        self._ahead = 0
        self._parts: list[tuple[_Prompt, int]] = []
        self._extra = 0.0

    @property
    def streams(self) -> int:
        """Sequences that get tokens now."""
        return len(self._streams)

    def prompt(self, new: int, before: int, done: Callable[[], None]) -> None:
        """Compute ``new`` tokens that follow ``before`` others; ``done`` is called when that is over."""
        self._prompts.append(_Prompt(new, before, done))
        self._arrived()

    def stream(self, tokens: int, done: Callable[[], None]) -> None:
        """Give a sequence so many tokens, one a step; ``done`` is called with the last."""
        heapq.heappush(self._streams, (self._now_at() + tokens, next(self._order), done))
        self._arrived()

    def _now_at(self) -> int:
        """Steps taken when a sequence that comes now joins."""
        if self._timer is None or self._loop.time() <= self._since:
            return self._taken
        return self._taken + self._joined()

    def _joined(self) -> int:
        """Steps of the present run after which something that comes now can join."""
        if self._parts or self._each <= 0.0:
            return self._ahead
        passed = math.floor((self._loop.time() - self._since) / self._each + 1e-9) + 1
        return min(self._ahead, passed)

    def _arrived(self) -> None:
        if self._timer is None:
            self._plan()
        elif self._loop.time() <= self._since:
            self._timer.cancel()
            self._plan()
        elif (joined := self._joined()) < self._ahead:
            self._timer.cancel()
            self._ahead = joined
            self._timer = self._loop.call_at(self._since + joined * self._each, self._end)

    def _plan(self) -> None:
        """Begin a run of steps that are all alike."""
        self._timer, self._parts, self._extra = None, [], 0.0
        if not (self._prompts or self._streams):
            return
        model, room = self._model, self._model.chunk
        for prompt in self._prompts:
            part = min(room, prompt.new)
            self._extra += model.compute(part, prompt.before)
            self._parts.append((prompt, part))
            room -= part
            if room <= 0:
                break
        self._since = self._loop.time()
        self._each = model.step + model.stream * len(self._streams) + self._extra
        self._ahead = 1 if self._parts else max(1, self._streams[0][0] - self._taken)
        self._timer = self._loop.call_at(self._since + self._ahead * self._each, self._end)

    def _end(self) -> None:
        self._timer = None
        self._taken += self._ahead
        self.busy += self._ahead * self._each
        self.computing += self._extra
        over: list[Callable[[], None]] = []
        while self._streams and self._streams[0][0] <= self._taken:
            over.append(heapq.heappop(self._streams)[2])
        for prompt, part in self._parts:
            prompt.new -= part
            prompt.before += part
            if not prompt.new:
                self._prompts.popleft()
                over.append(prompt.done)
        self._parts = []
        for done in over:
            done()
        if self._timer is None:
            self._plan()
