"""Conversations that are being served: their turns in flight, and their end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from antiphon_server.router.frontier import Frontier, FrontierStore
from antiphon_server.router.identity import Identity, Key
from antiphon_server.router.leases import Leases
from antiphon_server.router.placement import Placement


class Visit:
    """One turn's stay in a conversation. ``closed``: the conversation ended meanwhile, so nothing is to be
    kept. ``company``: other turns of the same key were in flight when it began. ``phase``: what it is
    at."""

    def __init__(self, key: Key | None, company: bool) -> None:
        self.key = key
        self.company = company
        self.closed = False
        self.phase = "plan"


class Conversations:
    """Turns in flight by conversation, and the frontiers that rest between turns."""

    def __init__(self, store: FrontierStore, placement: Placement, leases: Leases) -> None:
        self._store = store
        self._placement = placement
        self._leases = leases
        self._visits: dict[tuple[str, str], set[Visit]] = {}

    @contextmanager
    def visit(self, identity: Identity) -> Iterator[Visit]:
        """The time that a turn is in flight."""
        key = identity.key
        if key is None:
            yield Visit(None, company=False)
            return
        name = (key.tenant, key.conversation)
        visits = self._visits.setdefault(name, set())
        visit = Visit(key, company=any(other.key == key for other in visits))
        visits.add(visit)
        try:
            yield visit
        finally:
            visits.discard(visit)
            if not visits and self._visits.get(name) is visits:
                del self._visits[name]

    async def record(self, visit: Visit, frontier: Frontier) -> None:
        """The turn's KV becomes the conversation's frontier; what it displaces is released."""
        displaced = await self._store.record(frontier)
        if visit.closed:
            displaced += await self._store.remove([frontier])
        displaced += await self._over_budget(frontier.worker)
        for old in displaced:
            self._leases.release_frontier(old)

    async def _over_budget(self, worker: str) -> list[Frontier]:
        """Remove and return the least recent frontiers of a worker that holds more for resting conversations
        than it may: turns in flight need the rest."""
        budget = self._leases.budget(worker)
        if budget is None:
            return []
        excess = await self._store.tokens(worker) - budget
        if excess <= 0:
            return []
        victims = []
        for frontier in await self._store.held():
            if frontier.worker == worker and excess > 0:
                victims.append(frontier)
                excess -= frontier.tokens
        return await self._store.remove(victims)

    async def close(self, tenant: str, conversation: str) -> bool:
        """End a conversation of any model and salt: release its KV now. False if it is unknown."""
        visits = self._visits.get((tenant, conversation), set())
        for visit in visits:
            visit.closed = True
        dropped = await self._store.remove(await self._store.of(tenant, conversation))
        for frontier in dropped:
            self._leases.release_frontier(frontier)
        known = bool(visits or dropped) or self._placement.knows(tenant, conversation)
        self._placement.forget(tenant, conversation)
        return known

    async def describe(self, tenant: str, conversation: str, now: float) -> dict[str, Any] | None:
        """State for the client, None if unknown. Times in seconds; no addresses."""
        visits = self._visits.get((tenant, conversation), set())
        frontiers = await self._store.of(tenant, conversation)
        if not (visits or frontiers or self._placement.knows(tenant, conversation)):
            return None
        return {
            "id": conversation,
            "object": "antiphon.conversation",
            "turns_in_flight": len(visits),
            "kept": [
                {
                    "model": frontier.key.model,
                    "tokens": frontier.tokens,
                    "idle": round(max(0.0, now - frontier.idle_since), 3),
                    "lease": round(max(0.0, frontier.deadline - now), 3),
                }
                for frontier in frontiers
            ],
        }
