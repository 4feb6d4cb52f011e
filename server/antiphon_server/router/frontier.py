"""The frontier of a conversation: where the KV of its last turn lives, and the store that hands it out
once."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from antiphon_server.protocol import Handle
from antiphon_server.router.extent import Extent
from antiphon_server.router.identity import Key


@dataclass(frozen=True, slots=True)
class Frontier:
    """Last handle of a conversation.

    ``handle``: JSON as decode returned it, kept as bytes because a parsed one is several times larger.
    ``lease``: its ``remote_request_id``. ``worker``, ``epoch``: the decode engine that holds the KV, and
    which life of it. ``tokens``: tokens it stands for, ``prompt_tokens``: those of them that were the prompt
    (0 if unknown). ``extent``: what the prompt looked like to the router. ``deadline``: when the lease ends,
    and ``idle_since``: when the turn ended, both in seconds on the router's own clock. ``expiry``: the
    lease's end on the engine's clock after a renewal, None before.
    """

    key: Key
    handle: bytes
    lease: str
    worker: str
    epoch: str
    tokens: int
    deadline: float
    idle_since: float
    prompt_tokens: int = 0
    extent: Extent | None = None
    expiry: float | None = None

    def params(self) -> Handle:
        """The handle to send. Prefill declines a pull shortly before the deadline it reads there, so a
        renewed one goes in."""
        handle: Handle = msgspec.json.decode(self.handle)
        return handle if self.expiry is None else {**handle, "remote_blocks_expiry_time": self.expiry}


class FrontierStore(Protocol):
    """Where frontiers live, for one router or for several. Each is handed out at most once; what falls out
    is returned so that it gets released. A router keeps alive what it recorded itself."""

    async def start(self) -> None:
        """Connect, where there is something to connect to. Never fails: see ``degraded``."""

    async def stop(self) -> None:
        """Disconnect."""

    @property
    def degraded(self) -> bool:
        """True while frontiers are not shared with other routers although they should be."""

    async def take(self, key: Key) -> Frontier | None:
        """Remove and return the key's frontier, atomically."""

    async def record(self, frontier: Frontier) -> list[Frontier]:
        """Put the newest frontier of its key. Returns those that it displaced."""

    async def renewed(self, old: Frontier, new: Frontier) -> bool:
        """Replace ``old`` by ``new`` unless somebody took or replaced it meanwhile."""

    async def remove(self, frontiers: Iterable[Frontier]) -> list[Frontier]:
        """Remove these. Returns those that were still there: they are the caller's to release."""

    async def of(self, tenant: str, conversation: str) -> list[Frontier]:
        """All frontiers of a conversation, whoever recorded them: any model, any salt."""

    async def held(self) -> list[Frontier]:
        """Those that this router keeps alive, least recent first."""

    async def tokens(self, worker: str) -> int:
        """Tokens of KV that all frontiers on a worker stand for, whoever recorded them."""


class MemoryStore:
    """Frontiers of one router, at most ``limit`` of them."""

    degraded = False

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._frontiers: OrderedDict[Key, Frontier] = OrderedDict()
        self._keys: dict[tuple[str, str], set[Key]] = {}
        self._tokens: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._frontiers)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def take(self, key: Key) -> Frontier | None:
        return self._pop(key)

    async def record(self, frontier: Frontier) -> list[Frontier]:
        displaced = []
        old = self._pop(frontier.key)
        if old is not None:
            displaced.append(old)
        self._frontiers[frontier.key] = frontier
        self._keys.setdefault(_conversation(frontier.key), set()).add(frontier.key)
        self._tokens[frontier.worker] += frontier.tokens
        if len(self._frontiers) > self._limit:
            oldest = next(iter(self._frontiers))
            displaced += filter(None, [self._pop(oldest)])
        return displaced

    async def renewed(self, old: Frontier, new: Frontier) -> bool:
        if self._frontiers.get(old.key) is not old:
            return False
        self._frontiers[old.key] = new
        return True

    async def remove(self, frontiers: Iterable[Frontier]) -> list[Frontier]:
        found = [f for f in frontiers if self._same(self._frontiers.get(f.key), f)]
        for frontier in found:
            self._pop(frontier.key)
        return found

    async def of(self, tenant: str, conversation: str) -> list[Frontier]:
        return [self._frontiers[key] for key in self._keys.get((tenant, conversation), ())]

    async def held(self) -> list[Frontier]:
        return list(self._frontiers.values())

    async def tokens(self, worker: str) -> int:
        return self._tokens[worker]

    @staticmethod
    def _same(kept: Frontier | None, asked: Frontier) -> bool:
        """A renewal may have replaced the frontier; its lease has not changed."""
        return kept is not None and (kept.worker, kept.lease) == (asked.worker, asked.lease)

    def _pop(self, key: Key) -> Frontier | None:
        frontier = self._frontiers.pop(key, None)
        if frontier is None:
            return None
        self._tokens[frontier.worker] -= frontier.tokens
        keys = self._keys[_conversation(key)]
        keys.discard(key)
        if not keys:
            del self._keys[_conversation(key)]
        return frontier


def _conversation(key: Key) -> tuple[str, str]:
    return key.tenant, key.conversation
