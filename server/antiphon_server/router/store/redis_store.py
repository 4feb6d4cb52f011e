"""Frontiers in Redis or Valkey, shared by several routers."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from antiphon_server.router.gate.identity import Key
from antiphon_server.router.store import redis_scripts as scripts
from antiphon_server.router.store.frontier import Frontier
from antiphon_server.router.store.memory_store import CLOSED_LIFE, LIVES, MemoryStore
from antiphon_server.router.store.redis_connection import RedisConnection, Script

log = logging.getLogger(__name__)

BEAT = 2.0
"""Seconds between two signs of life."""
SILENCE = 3 * BEAT
"""Seconds without one after which a router's frontiers are adopted by another."""
_FENCE_LIFE = 86_400.0
_BATCH = 256

_TAKE, _RECORD, _RENEWED, _REMOVE = map(
    Script, (scripts.TAKE, scripts.RECORD, scripts.RENEWED, scripts.REMOVE)
)
_OF, _CLOSE, _FENCE, _HELD = map(Script, (scripts.OF, scripts.CLOSE, scripts.FENCE, scripts.HELD))
_READ, _TOKENS, _BEAT, _LEAVE = map(Script, (scripts.READ, scripts.TOKENS, scripts.BEAT, scripts.LEAVE))


class RedisStore:
    """A frontier ends in Redis with its lease. Every method raises :class:`StoreError` when Redis fails.

    ``router``: this process. ``limit``: frontiers that it keeps alive. ``silence``: seconds after which a
    router counts as dead. ``release``: give all up at the end, instead of leaving it to another router.
    ``books``: what this router keeps alive, as far as it knows.
    """

    degraded = False
    at_hand = False

    def __init__(
        self,
        url: str,
        *,
        router: str | None = None,
        prefix: str = "antiphon",
        limit: int,
        timeout: float = 0.25,
        silence: float = SILENCE,
        release: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = RedisConnection(url, prefix=prefix, timeout=timeout)
        self._router = router or uuid.uuid4().hex
        self._limit = limit
        self._silence = silence
        self._release = release
        self._clock = clock
        self._keys: dict[str, Key] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Frontier)
        self.books = MemoryStore(limit, clock=clock)

    @property
    def address(self) -> str:
        """Of Redis, without password."""
        return self._redis.address

    async def start(self) -> None:
        await self.beat()

    async def stop(self) -> None:
        await self._redis.close()

    async def take(self, key: Key) -> Frontier | None:
        entry = await self._redis.run(_TAKE, _id(key))
        frontier = self._frontier(entry) if entry else None
        if frontier is not None:
            await self.books.remove([frontier])
        return frontier

    async def record(self, frontier: Frontier) -> list[Frontier]:
        now, key = self._clock(), frontier.key
        name = _id(key)
        recorded, old = await self._redis.run(
            _RECORD,
            name,
            _conversation(key.tenant, key.conversation),
            self._router,
            frontier.lease,
            frontier.worker,
            frontier.epoch,
            frontier.tokens,
            max(1, _ms(frontier.deadline - now)),
            _ms(now - frontier.idle_since),
            _ms(now - frontier.began),
            "" if frontier.expiry is None else repr(frontier.expiry),
            self._encoder.encode(frontier),
        )
        if not recorded:
            return [frontier]
        displaced = self._frontiers([old] if old else [])
        self._keys[name] = key
        beyond = [f for f in await self.books.record(frontier) if f.key != key]
        return displaced + await self.remove(beyond)

    async def renewed(self, old: Frontier, new: Frontier) -> bool:
        lasts = max(1, _ms(new.deadline - self._clock()))
        expiry = "" if new.expiry is None else repr(new.expiry)
        if await self._redis.run(_RENEWED, _id(old.key), old.lease, old.worker, lasts, expiry):
            await self.books.renewed(old, new)
            return True
        await self.books.remove([old])
        return False

    async def remove(self, frontiers: Iterable[Frontier]) -> list[Frontier]:
        asked = list(frontiers)
        removed: list[Frontier] = []
        for start in range(0, len(asked), _BATCH):
            batch = asked[start : start + _BATCH]
            names = [part for f in batch for part in (_id(f.key), f.lease, f.worker)]
            there = await self._redis.run(_REMOVE, *names)
            removed += [f for f, found in zip(batch, there, strict=True) if found]
        # Of our own the books have the last renewal.
        known = {frontier.key: frontier for frontier in await self.books.remove(asked)}
        return [known.get(frontier.key, frontier) for frontier in removed]

    async def close(self, tenant: str, conversation: str, *, ago: float = 0.0) -> list[Frontier]:
        """``ago``: seconds since it was closed."""
        name = _conversation(tenant, conversation)
        closed = self._frontiers(await self._redis.run(_CLOSE, name, _ms(CLOSED_LIFE), _ms(ago)))
        await self.books.remove(closed)
        return closed

    async def fence(self, worker: str, epoch: str) -> None:
        start = 0
        while start >= 0:
            start = await self._redis.run(_FENCE, worker, epoch, start, _BATCH, LIVES, _ms(_FENCE_LIFE))
        await self.books.fence(worker, epoch)

    async def leave(self) -> list[Frontier]:
        released = await self.remove(await self.held()) if self._release else []
        await self._redis.run(_LEAVE, self._router)
        return released

    async def of(self, tenant: str, conversation: str) -> list[Frontier]:
        return self._frontiers(await self._redis.run(_OF, _conversation(tenant, conversation)))

    async def held(self) -> list[Frontier]:
        """By the books: what another router took is in them until the next :meth:`beat`."""
        return await self.books.held()

    async def tokens(self, worker: str) -> int:
        found: int = await self._redis.run(_TOKENS, worker)
        return found

    async def beat(self) -> int:
        """Give a sign of life, put the books right, and adopt the frontiers of routers that give no sign.
        Returns how many."""
        await self._redis.check()
        await self._audit()
        adopted = 0
        while True:
            room = max(0, min(_BATCH, self._limit - len(self.books)))
            entries = await self._redis.run(_BEAT, self._router, _ms(self._silence), room)
            adopted += len(entries)
            await self._enter(entries)
            if not entries:
                break
        if adopted:
            log.info("store.adopted", extra={"frontiers": adopted})
        return adopted

    async def _audit(self) -> None:
        """Strike out what another router took or what ended; enter what was recorded although the answer was
        lost."""
        before = [(name, self.books.peek(key)) for name, key in self._keys.items()]
        owned = [name.decode() for name in await self._redis.run(_HELD, self._router)]
        there = set(owned)
        for name, kept in before:
            if kept is None or name not in there:
                await self.books.remove([kept] if kept is not None else [])
                key = self._keys.get(name)
                if key is not None and self.books.peek(key) is None:
                    del self._keys[name]
        unknown = [name for name in owned if name not in self._keys]
        for start in range(0, len(unknown), _BATCH):
            await self._enter(await self._redis.run(_READ, *unknown[start : start + _BATCH]))

    async def _enter(self, entries: Sequence[Any]) -> None:
        for frontier in self._frontiers(entries):
            self._keys[_id(frontier.key)] = frontier.key
            await self.books.record(frontier)
        if entries:
            self.books.sort()

    def _frontiers(self, entries: Sequence[Any]) -> list[Frontier]:
        return [frontier for entry in entries if (frontier := self._frontier(entry)) is not None]

    def _frontier(self, entry: Sequence[Any]) -> Frontier | None:
        """On this router's clock. None, and a log line, if another version of the router wrote it."""
        name, data, lasts, idle, expiry = entry
        try:
            frontier = self._decoder.decode(data)
        except msgspec.DecodeError as error:
            log.warning("store.unreadable", extra={"frontier": name.decode(), "error": str(error)})
            return None
        kept = self.books.peek(frontier.key)
        if kept is not None and (kept.worker, kept.lease) == (frontier.worker, frontier.lease):
            return kept
        now = self._clock()
        ended = now - idle / 1000
        return dataclasses.replace(
            frontier,
            deadline=now + lasts / 1000,
            idle_since=ended,
            began=ended,
            expiry=float(expiry) if expiry else None,
        )


def _id(key: Key) -> str:
    return _digest((key.tenant, key.model, key.salt, key.conversation))


def _conversation(tenant: str, conversation: str) -> str:
    return _digest((tenant, conversation))


def _digest(parts: tuple[str, ...]) -> str:
    """Names of clients do not show in Redis's keys."""
    return hashlib.blake2b(msgspec.msgpack.encode(parts), digest_size=16).hexdigest()


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
