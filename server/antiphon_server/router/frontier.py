"""The frontier of a conversation: where the KV of its last turn lives, and the store that hands it out
once."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from antiphon_server.protocol import Handle
from antiphon_server.router.identity import Key


@dataclass(frozen=True, slots=True)
class Frontier:
    """Last handle of a conversation.

    ``handle``: as decode returned it. ``lease``: its ``remote_request_id``. ``worker``, ``epoch``: the
    decode engine that holds the KV, and which life of it. ``tokens``: tokens it stands for. ``deadline``:
    when the lease ends, and ``idle_since``: when the turn ended, both in seconds on the router's own clock.
    """

    key: Key
    handle: Handle
    lease: str
    worker: str
    epoch: str
    tokens: int
    deadline: float
    idle_since: float


class FrontierStore(Protocol):
    """Where frontiers live. Each is handed out at most once; what falls out is returned so that it gets
    released."""

    async def take(self, key: Key) -> Frontier | None:
        """Remove and return the key's frontier, atomically."""

    async def record(self, frontier: Frontier) -> list[Frontier]:
        """Put the newest frontier of its key. Returns those that it displaced."""

    async def renewed(self, old: Frontier, new: Frontier) -> bool:
        """Replace ``old`` by ``new`` unless somebody took it meanwhile; keeps its place in the LRU order."""

    async def drop(self, condition: Callable[[Frontier], bool]) -> list[Frontier]:
        """Remove and return all that meet the condition."""

    async def of(self, tenant: str, conversation: str) -> list[Frontier]:
        """All frontiers of a conversation: any model, any salt."""

    async def all(self) -> list[Frontier]:
        """A snapshot, least recent first."""

    async def tokens(self, worker: str) -> int:
        """Tokens of KV that all frontiers on a worker stand for."""


class MemoryStore:
    """Frontiers of one router, at most ``limit`` of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._frontiers: OrderedDict[Key, Frontier] = OrderedDict()
        self._tokens: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._frontiers)

    async def take(self, key: Key) -> Frontier | None:
        return self._pop(key)

    async def record(self, frontier: Frontier) -> list[Frontier]:
        displaced = []
        old = self._pop(frontier.key)
        if old is not None:
            displaced.append(old)
        self._frontiers[frontier.key] = frontier
        self._tokens[frontier.worker] += frontier.tokens
        if len(self._frontiers) > self._limit:
            oldest = next(iter(self._frontiers.values()))
            self._remove([oldest])
            displaced.append(oldest)
        return displaced

    async def renewed(self, old: Frontier, new: Frontier) -> bool:
        if self._frontiers.get(old.key) is not old:
            return False
        self._frontiers[old.key] = new
        return True

    async def drop(self, condition: Callable[[Frontier], bool]) -> list[Frontier]:
        found = [frontier for frontier in self._frontiers.values() if condition(frontier)]
        self._remove(found)
        return found

    async def of(self, tenant: str, conversation: str) -> list[Frontier]:
        return [f for k, f in self._frontiers.items() if (k.tenant, k.conversation) == (tenant, conversation)]

    async def all(self) -> list[Frontier]:
        return list(self._frontiers.values())

    async def tokens(self, worker: str) -> int:
        return self._tokens[worker]

    def _pop(self, key: Key) -> Frontier | None:
        frontier = self._frontiers.pop(key, None)
        if frontier is not None:
            self._tokens[frontier.worker] -= frontier.tokens
        return frontier

    def _remove(self, frontiers: Iterable[Frontier]) -> None:
        for frontier in frontiers:
            self._pop(frontier.key)
