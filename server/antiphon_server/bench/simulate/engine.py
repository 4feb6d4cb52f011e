"""Engines without KV and without a model: lengths, times and books only."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from antiphon_server.bench.simulate.fleet import Fleet
from antiphon_server.bench.simulate.memory import Memory, Talk
from antiphon_server.bench.simulate.rates import RateModel
from antiphon_server.bench.simulate.steps import Steps


class _Links:
    """Transfers of an engine: ``most`` at once (0: any number), later ones wait."""

    def __init__(self, most: int, loop: asyncio.AbstractEventLoop) -> None:
        self._free = [0.0] * most
        self._loop = loop

    def until(self, seconds: float) -> float:
        """Seconds from now until a transfer that takes ``seconds`` is over."""
        if not self._free:
            return seconds
        now = self._loop.time()
        first = min(range(len(self._free)), key=self._free.__getitem__)
        self._free[first] = max(now, self._free[first]) + seconds
        return self._free[first] - now


@dataclass(slots=True)
class Lease:
    """KV of a finished request: ``tokens`` of a conversation as it stood at ``turn``, until ``deadline``."""

    name: str
    talk: Talk
    tokens: int
    turn: int
    deadline: float


class Engine:
    """What both roles have. ``pinned``: tokens of leases in whole blocks; ``most_pinned``: ever.
    ``waited``: legs that had to wait for memory or for a place among the sequences."""

    _ids = count()

    def __init__(
        self, name: str, model: RateModel, fleet: Fleet, *, tokens: int, caches: bool, sequences: int
    ) -> None:
        self.name = name
        self.model = model
        self.fleet = fleet
        self.loop = asyncio.get_running_loop()
        self.memory = Memory(tokens, caches=caches, block=fleet.block)
        self.steps = Steps(model, self.loop)
        self.links = _Links(model.links, self.loop)
        self.leases: dict[str, Lease] = {}
        self.pinned = 0
        self.most_pinned = 0
        self.pinned_seconds = 0.0
        self.waited = 0
        self._pinned_since = self.loop.time()
        self._sequences = sequences
        self._running = 0
        self._waiting: deque[tuple[Talk, object, int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """Legs that wait for room."""
        return len(self._waiting)

    async def admit(self, talk: Talk, owner: object, tokens: int) -> None:
        """Wait until there is room for a leg that comes to so many tokens."""
        if not self._waiting and self._take(talk, owner, tokens):
            return
        self.waited += 1
        turn: asyncio.Future[None] = self.loop.create_future()
        self._waiting.append((talk, owner, tokens, turn))
        await turn

    def grant(self, talk: Talk, owner: object, tokens: int, seconds: float) -> Lease:
        """A leg is over, and its KV stays for a reader."""
        lease = Lease(f"{self.name}-{next(self._ids)}", talk, tokens, talk.turn, self.loop.time() + seconds)
        self._running -= 1
        self.memory.fill(talk, owner, tokens, new_owner=lease.name)
        self.leases[lease.name] = lease
        self._pin(self._charge(lease))
        self.loop.call_at(lease.deadline, self._expire, lease.name)
        self.freed()
        return lease

    def end(self, name: str) -> bool:
        """A lease is over. False: it was already."""
        lease = self.leases.pop(name, None)
        if lease is None:
            return False
        self._pin(-self._charge(lease))
        self.memory.drop(lease.talk.name, name)
        self.freed()
        return True

    async def compute(self, new: int, before: int) -> None:
        """Until ``new`` tokens of a prompt are computed."""
        done: asyncio.Future[None] = self.loop.create_future()
        self.steps.prompt(new, before, _resolving(done))
        await done

    async def fetch(self, seconds: float) -> None:
        """Read another engine's KV, which takes so long once a link is free."""
        await asyncio.sleep(self.links.until(seconds))

    def freed(self) -> None:
        """There may be room for those that wait."""
        while self._waiting:
            talk, owner, tokens, turn = self._waiting[0]
            if not self._take(talk, owner, tokens):
                return
            self._waiting.popleft()
            turn.set_result(None)

    def _take(self, talk: Talk, owner: object, tokens: int) -> bool:
        if self._running >= self._sequences or not self.memory.hold(talk, owner, tokens):
            return False
        self._running += 1
        return True

    def pinned_until_now(self) -> float:
        """Pinned tokens times seconds."""
        return self.pinned_seconds + self.pinned * (self.loop.time() - self._pinned_since)

    def _charge(self, lease: Lease) -> int:
        return -(-lease.tokens // self.fleet.block) * self.fleet.block

    def _pin(self, tokens: int) -> None:
        now = self.loop.time()
        self.pinned_seconds += self.pinned * (now - self._pinned_since)
        self._pinned_since = now
        self.pinned += tokens
        self.most_pinned = max(self.most_pinned, self.pinned)

    def _expire(self, name: str) -> None:
        lease = self.leases.get(name)
        if lease is None:
            return
        if lease.deadline > self.loop.time():
            self.loop.call_at(lease.deadline, self._expire, name)
        else:
            self.end(name)


def _resolving(done: asyncio.Future[None]) -> Callable[[], None]:
    return lambda: done.set_result(None)
