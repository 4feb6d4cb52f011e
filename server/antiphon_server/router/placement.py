"""Which engine takes a leg: the conversation's own while it is up, else the least busy one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from antiphon_server.router.identity import Key
from antiphon_server.router.workers import Worker


@dataclass(frozen=True, slots=True)
class Place:
    """URLs of the engines that served a conversation last."""

    prefill: str | None = None
    decode: str | None = None


class Placement:
    """Remembers the places of at most ``limit`` conversations."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._places: OrderedDict[Key, Place] = OrderedDict()
        self._rounds: dict[str, count[int]] = {}

    def of(self, key: Key | None) -> Place:
        """Where the conversation was, or nowhere."""
        return self._places.get(key, Place()) if key is not None else Place()

    def knows(self, tenant: str, conversation: str) -> bool:
        """True when a conversation was served here."""
        return any((key.tenant, key.conversation) == (tenant, conversation) for key in self._places)

    def remember(self, key: Key, place: Place) -> None:
        """The conversation was served at ``place``."""
        self._places[key] = place
        self._places.move_to_end(key)
        if len(self._places) > self._limit:
            self._places.popitem(last=False)

    def forget(self, tenant: str, conversation: str) -> None:
        """The conversation is over."""
        for key in [k for k in self._places if (k.tenant, k.conversation) == (tenant, conversation)]:
            del self._places[key]

    def choose(
        self, workers: Sequence[Worker], preferred: str | None, avoid: Iterable[str] = ()
    ) -> Worker | None:
        """A healthy worker; one of ``avoid`` only if there is no other. None if none is healthy."""
        shunned = set(avoid)
        healthy = [worker for worker in workers if worker.healthy]
        candidates = [worker for worker in healthy if worker.url not in shunned] or healthy
        if not candidates:
            return None
        for worker in candidates:
            if worker.url == preferred:
                return worker
        # Rounds are counted by role: prefill and decode alternate, so a common count would not go round.
        start = next(self._rounds.setdefault(candidates[0].role, count())) % len(candidates)
        rotated = candidates[start:] + candidates[:start]
        return min(rotated, key=lambda worker: worker.in_flight)
