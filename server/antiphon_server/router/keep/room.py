"""How much of a decode engine's KV is pinned, and how much may be: what rests in the store, what turns in
flight are going to pin, and what is pinned still though no conversation has it any more."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from antiphon_server.router.fleet.workers import Worker


@dataclass(slots=True)
class _Loose:
    """A lease that left the store. ``until``: it has ended by then, whatever happens. ``leaving``: its
    release was asked for."""

    tokens: int
    until: float
    leaving: bool


@dataclass(slots=True)
class Room:
    """One life of one engine; tokens in whole blocks. ``padding``: what rounding up to blocks adds to the
    tokens that rest."""

    epoch: str | None
    block: int
    padding: int = 0
    reserved: dict[object, int] = field(default_factory=dict)
    loose: dict[object, _Loose] = field(default_factory=dict)

    @property
    def leaving(self) -> int:
        """Tokens that will be free without further doing."""
        return sum(lease.tokens for lease in self.loose.values() if lease.leaving)

    @property
    def busy(self) -> int:
        """Tokens of turns in flight: what they are going to pin, and what they have taken and still read."""
        return sum(self.reserved.values()) + sum(
            lease.tokens for lease in self.loose.values() if not lease.leaving
        )


class Rooms:
    """Room of every decode engine. ``share``: of its KV that conversations may pin while they rest."""

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self.share = share
        self._clock = clock
        self._rooms: dict[str, Room] = {}

    def budget(self, worker: Worker) -> int | None:
        """Tokens that may be pinned; None if the engine's capacity is unknown."""
        capacity = worker.info.capacity if worker.info is not None else 0
        return int(capacity * self.share) if capacity else None

    def charge(self, worker: Worker, tokens: int) -> int:
        """Tokens in whole blocks, as the engine pins them."""
        block = _block(worker)
        return -(-tokens // block) * block

    def of(self, worker: Worker) -> Room:
        """An engine's room. A restart empties it."""
        room = self._rooms.get(worker.name)
        if room is None or room.epoch != worker.epoch:
            room = self._rooms[worker.name] = Room(worker.epoch, _block(worker))
        now = self._clock()
        for lease in [name for name, loose in room.loose.items() if loose.until <= now]:
            del room.loose[lease]
        return room

    def rests(self, name: str, tokens: int, *, no_more: bool = False) -> None:
        """A frontier of so many tokens came into the store, or left it: mind what rounding adds to it."""
        room = self._rooms.get(name)
        if room is not None:
            padding = -tokens % room.block
            room.padding = max(0, room.padding + (-padding if no_more else padding))

    def reserve(self, owner: object, worker: Worker, tokens: int) -> None:
        """A turn is going to pin so many tokens, here and nowhere else."""
        self.cancel(owner)
        self.of(worker).reserved[owner] = self.charge(worker, tokens)

    def cancel(self, owner: object) -> int:
        """The turn pins nothing of its own any more. Returns what it had reserved."""
        return sum(room.reserved.pop(owner, 0) for room in self._rooms.values())

    def linger(self, owner: object, seconds: float = math.inf) -> None:
        """The turn is over, but its engine may still pin what was reserved, for so long at most."""
        until = self._clock() + seconds
        for room in self._rooms.values():
            if tokens := room.reserved.pop(owner, 0):
                room.loose[owner] = _Loose(tokens, until, leaving=True)

    def lingered(self, owner: object) -> None:
        """What lingered is free."""
        for room in self._rooms.values():
            room.loose.pop(owner, None)

    def loosen(self, worker: Worker, lease: str, tokens: int, until: float, *, leaving: bool) -> None:
        """A lease left the store and is pinned still."""
        self.of(worker).loose[lease] = _Loose(self.charge(worker, tokens), until, leaving)

    def freed(self, worker: Worker, lease: str) -> None:
        """An engine said that a lease has ended."""
        self.of(worker).loose.pop(lease, None)

    def read(self, worker: Worker, lease: str) -> None:
        """Prefill is done with a lease that a turn took, which ends it unless its release was asked for."""
        room = self.of(worker)
        loose = room.loose.get(lease)
        if loose is not None and not loose.leaving:
            del room.loose[lease]


def _block(worker: Worker) -> int:
    return max(1, worker.info.block_size) if worker.info is not None else 1
