"""How much of a decode engine's KV is pinned, and how much may be: what rests in the store, what turns in
flight are going to pin, and what is pinned still though no conversation has it any more."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from antiphon_server.router.fleet.workers import Worker


@dataclass(frozen=True, slots=True)
class _Loose:
    """A lease that left the store. ``until``: it has ended by then, whatever happens. ``leaving``: its
    release was asked for."""

    tokens: int
    until: float
    leaving: bool


class Room:
    """One life of one engine; tokens in whole blocks. ``padding``: what rounding up to blocks adds to the
    tokens that rest. ``leaving``: tokens that will be free without further doing. ``busy``: tokens of turns
    in flight: what they are going to pin, and what they have taken and still read."""

    def __init__(self, epoch: str | None, block: int) -> None:
        self.epoch = epoch
        self.block = block
        self.padding = 0
        self.leaving = 0
        self.busy = 0
        self._reserved: dict[object, int] = {}
        self._loose: dict[object, _Loose] = {}
        self._soonest = math.inf
        """No lease ends before."""

    def reserve(self, owner: object, tokens: int) -> None:
        """A turn is going to pin so many."""
        self._reserved[owner] = tokens
        self.busy += tokens

    def cancel(self, owner: object) -> int:
        """It does not, or not any more. Returns what it had reserved."""
        tokens = self._reserved.pop(owner, 0)
        self.busy -= tokens
        return tokens

    def loosen(self, name: object, lease: _Loose) -> None:
        """A lease left the store."""
        self.end(name)
        self._loose[name] = lease
        self._count(lease, lease.tokens)
        self._soonest = min(self._soonest, lease.until)

    def end(self, name: object) -> None:
        """A lease pins nothing any more."""
        lease = self._loose.pop(name, None)
        if lease is not None:
            self._count(lease, -lease.tokens)

    def reads(self, name: object) -> bool:
        """A turn reads a lease that it has taken."""
        lease = self._loose.get(name)
        return lease is not None and not lease.leaving

    def expire(self, now: float) -> None:
        """Leases end by their engine's clock."""
        if now < self._soonest:
            return
        for name in [name for name, lease in self._loose.items() if lease.until <= now]:
            self.end(name)
        self._soonest = min((lease.until for lease in self._loose.values()), default=math.inf)

    def _count(self, lease: _Loose, tokens: int) -> None:
        if lease.leaving:
            self.leaving += tokens
        else:
            self.busy += tokens


class Rooms:
    """Room of every decode engine. ``share``: of its KV that conversations may pin while they rest."""

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self.share = share
        self._clock = clock
        self._rooms: dict[str, Room] = {}

    def budget(self, worker: Worker) -> int | None:
        """Tokens that may be pinned; None if the engine's capacity is unknown."""
        capacity = worker.engine.capacity
        return int(capacity * self.share) if capacity else None

    def charge(self, worker: Worker, tokens: int) -> int:
        """Tokens in whole blocks, as the engine pins them."""
        block = worker.engine.block_size
        return -(-tokens // block) * block

    def of(self, worker: Worker) -> Room:
        """An engine's room. A restart empties it."""
        room, engine = self._rooms.get(worker.name), worker.engine
        if room is None or room.epoch != engine.epoch:
            room = self._rooms[worker.name] = Room(engine.epoch, engine.block_size)
        room.expire(self._clock())
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
        self.of(worker).reserve(owner, self.charge(worker, tokens))

    def cancel(self, owner: object) -> int:
        """The turn pins nothing of its own any more. Returns what it had reserved."""
        return sum([room.cancel(owner) for room in self._rooms.values()])

    def linger(self, owner: object, seconds: float = math.inf) -> None:
        """The turn is over, but its engine may still pin what was reserved, for so long at most."""
        until = self._clock() + seconds
        for room in self._rooms.values():
            if tokens := room.cancel(owner):
                room.loosen(owner, _Loose(tokens, until, leaving=True))

    def lingered(self, owner: object) -> None:
        """What lingered is free."""
        for room in self._rooms.values():
            room.end(owner)

    def loosen(self, worker: Worker, lease: str, tokens: int, until: float, *, leaving: bool) -> None:
        """A lease left the store and is pinned still."""
        self.of(worker).loosen(lease, _Loose(self.charge(worker, tokens), until, leaving))

    def freed(self, worker: Worker, lease: str) -> None:
        """An engine said that a lease has ended."""
        self.of(worker).end(lease)

    def read(self, worker: Worker, lease: str) -> None:
        """Prefill is done with a lease that a turn took, which ends it unless its release was asked for."""
        room = self.of(worker)
        if room.reads(lease):
            room.end(lease)
