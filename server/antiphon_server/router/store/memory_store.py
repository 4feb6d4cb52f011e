"""Frontiers in the memory of one router."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable

from antiphon_server.router.gate.identity import Key
from antiphon_server.router.store.frontier import Frontier

CLOSED_LIFE = 3600.0
"""Seconds that a closed conversation is remembered: no turn that was in flight then takes longer."""
LIVES = 16
"""Lives of a worker that are remembered."""
_MOST_CLOSED = 10_000


class MemoryStore:
    """At most ``limit`` frontiers. ``release``: whether they are given up when the router stops."""

    degraded = False
    at_hand = True

    def __init__(
        self, limit: int, *, release: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._release = release
        self._clock = clock
        self._frontiers: OrderedDict[Key, Frontier] = OrderedDict()
        self._conversations: dict[str, dict[str, Key | tuple[Key, ...]]] = {}
        self._tokens: Counter[str] = Counter()
        self._lives: dict[str, deque[str]] = {}
        self._closed: OrderedDict[tuple[str, str], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._frontiers)

    def peek(self, key: Key) -> Frontier | None:
        """The key's frontier; it stays."""
        return self._frontiers.get(key)

    def sort(self) -> None:
        """Least recent first, after frontiers came in that had rested elsewhere."""
        ordered = sorted(self._frontiers.items(), key=lambda item: item[1].idle_since)
        self._frontiers = OrderedDict(ordered)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def take(self, key: Key) -> Frontier | None:
        return self._pop(key)

    async def record(self, frontier: Frontier) -> list[Frontier]:
        key = frontier.key
        kept = self._frontiers.get(key)
        if self._refuses(frontier) or (kept is not None and kept.idle_since > frontier.idle_since):
            return [frontier]
        displaced = [] if kept is None else [kept]
        self._pop(key)
        self._frontiers[key] = frontier
        conversations = self._conversations.setdefault(key.tenant, {})
        others = _all(conversations.get(key.conversation))
        conversations[key.conversation] = (*others, key) if others else key
        self._tokens[frontier.worker] += frontier.tokens
        if len(self._frontiers) > self._limit:
            oldest = next(iter(self._frontiers))
            displaced += filter(None, [self._pop(oldest)])
        return displaced

    async def renewed(self, old: Frontier, new: Frontier) -> bool:
        if not self._keeps(old):
            return False
        self._frontiers[old.key] = new
        return True

    async def remove(self, frontiers: Iterable[Frontier]) -> list[Frontier]:
        popped = [self._pop(frontier.key) for frontier in frontiers if self._keeps(frontier)]
        return [frontier for frontier in popped if frontier is not None]

    async def close(self, tenant: str, conversation: str) -> list[Frontier]:
        now = self._clock()
        self._closed[tenant, conversation] = now
        self._closed.move_to_end((tenant, conversation))
        while now - next(iter(self._closed.values())) > CLOSED_LIFE or len(self._closed) > _MOST_CLOSED:
            self._closed.popitem(last=False)
        return await self.remove(await self.of(tenant, conversation))

    async def fence(self, worker: str, epoch: str) -> None:
        lives = self._lives.setdefault(worker, deque(maxlen=LIVES))
        if epoch not in lives:
            lives.appendleft(epoch)
        for frontier in await self.held():
            if frontier.worker == worker and frontier.epoch != lives[0]:
                self._pop(frontier.key)

    async def leave(self) -> list[Frontier]:
        return await self.remove(await self.held()) if self._release else []

    async def of(self, tenant: str, conversation: str) -> list[Frontier]:
        keys = _all(self._conversations.get(tenant, {}).get(conversation))
        return [self._frontiers[key] for key in keys]

    async def held(self) -> list[Frontier]:
        # In the same order; an OrderedDict's own view hashes each key anew, which takes much longer.
        return list(dict.values(self._frontiers))

    async def tokens(self, worker: str) -> int:
        return self._tokens[worker]

    def _refuses(self, frontier: Frontier) -> bool:
        lives = self._lives.get(frontier.worker)
        closed = self._closed.get((frontier.key.tenant, frontier.key.conversation))
        return (lives is not None and lives[0] != frontier.epoch) or (
            closed is not None and frontier.began <= closed
        )

    def _keeps(self, asked: Frontier) -> bool:
        """A renewal may have replaced the frontier; its lease has not changed."""
        kept = self._frontiers.get(asked.key)
        return kept is not None and (kept.worker, kept.lease) == (asked.worker, asked.lease)

    def _pop(self, key: Key) -> Frontier | None:
        frontier = self._frontiers.pop(key, None)
        if frontier is None:
            return None
        self._tokens[frontier.worker] -= frontier.tokens
        if not self._tokens[frontier.worker]:
            del self._tokens[frontier.worker]
        conversations = self._conversations[key.tenant]
        keys = tuple(other for other in _all(conversations.pop(key.conversation)) if other != key)
        if keys:
            conversations[key.conversation] = keys
        if not conversations:
            del self._conversations[key.tenant]
        return frontier


def _all(keys: Key | tuple[Key, ...] | None) -> tuple[Key, ...]:
    """Nearly all conversations have one key, so that is kept without a tuple around it."""
    return () if keys is None else (keys,) if isinstance(keys, Key) else keys
