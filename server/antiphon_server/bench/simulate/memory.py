"""What an engine's KV memory holds: of requests that run, of leases, and of conversations whose blocks are
free but not yet used for something else."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field


class Talk:
    """A conversation's text, told only by lengths. ``shared``: tokens that all conversations of its ``group``
    begin with."""

    __slots__ = ("_at", "_kept", "group", "name", "shared", "turn")

    def __init__(self, name: str, shared: int = 0, group: str = "") -> None:
        self.name = name
        self.shared = shared
        self.group = group
        self.turn = 0
        self._at: list[int] = []
        self._kept: list[int] = []

    def cut(self, tokens: int) -> None:
        """The present turn begins with no more than so many tokens of the last."""
        while self._kept and self._kept[-1] >= tokens:
            self._kept.pop()
            self._at.pop()
        self._at.append(self.turn)
        self._kept.append(tokens)

    def common(self, turn: int, tokens: int) -> int:
        """Of ``tokens`` that stood at a turn, how many the present one begins with."""
        # Later cuts that keep less have replaced earlier ones, so the first after the turn keeps least.
        place = bisect_right(self._at, turn)
        return min(tokens, self._kept[place]) if place < len(self._at) else tokens


@dataclass(slots=True)
class _Entry:
    """``tokens`` of a conversation as it stood at ``turn``. ``holds``: who uses how many of them,
    without the ``shared`` ones."""

    tokens: int = 0
    turn: int = 0
    used: int = 0
    shared: int = 0
    holds: dict[object, int] = field(default_factory=dict)


class Memory:
    """``capacity``: tokens. ``caches``: what is free is found again until its place is needed. ``block``:
    tokens of a block; a prefix is found in whole ones."""

    def __init__(self, capacity: int, *, caches: bool, block: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._free = 0
        self._caches = caches
        self._block = block
        self._entries: dict[str, _Entry] = {}
        self._idle: OrderedDict[str, int] = OrderedDict()
        self._groups: dict[str, int] = {}

    def found(self, talk: Talk, prompt: int) -> int:
        """Tokens of the prompt's beginning that need not be computed; at least one is."""
        if not self._caches:
            return 0
        entry = self._entries.get(talk.name)
        have = talk.common(entry.turn, entry.tokens) if entry is not None else 0
        have = min(max(have, min(talk.shared, self._groups.get(talk.group, 0))), prompt - 1)
        return have // self._block * self._block

    def hold(self, talk: Talk, owner: object, tokens: int) -> bool:
        """Take room for so many tokens of the conversation, what is there of them included. False: there is
        too little."""
        entry = self._entries.get(talk.name)
        # What a group shares is counted once, and stays.
        shared = min(talk.shared, self._groups.get(talk.group, 0))
        own = max(0, tokens - shared)
        if self.used + max(0, own - (entry.used if entry is not None else 0)) > self.capacity:
            return False
        if entry is None:
            entry = self._entries[talk.name] = _Entry()
        self._free -= self._idle.pop(talk.name, 0)
        entry.holds[owner] = own
        entry.shared = shared
        self._count(entry)
        self._evict()
        return True

    def fill(self, talk: Talk, owner: object, tokens: int, *, new_owner: object) -> None:
        """The conversation's KV of so many tokens is there, and held by another from now on."""
        entry = self._entries[talk.name]
        entry.tokens, entry.turn = tokens, talk.turn
        del entry.holds[owner]
        entry.holds[new_owner] = max(0, tokens - entry.shared)
        if talk.shared and self._caches and talk.shared > self._groups.get(talk.group, 0):
            self.used += talk.shared - self._groups.get(talk.group, 0)
            self._groups[talk.group] = talk.shared
            entry.holds[new_owner] = max(0, tokens - talk.shared)
            entry.shared = talk.shared
        self._count(entry)

    def drop(self, name: str, owner: object) -> None:
        """The owner needs it no more."""
        entry = self._entries.get(name)
        if entry is None or entry.holds.pop(owner, None) is None:
            return
        self._count(entry)
        if entry.holds:
            return
        rest = max(0, entry.tokens - entry.shared)
        if self._caches and rest:
            self._idle[name] = rest
            self._free += rest
            self._evict()
        else:
            del self._entries[name]

    def _evict(self) -> None:
        """What is free goes from the end of what was used longest ago."""
        while (excess := self.used + self._free - self.capacity) > 0 and self._idle:
            name, free = next(iter(self._idle.items()))
            part = min(free, -(-excess // self._block) * self._block)
            self._free -= part
            if part == free:
                del self._idle[name], self._entries[name]
            else:
                self._idle[name] = free - part
                self._entries[name].tokens -= part

    def _count(self, entry: _Entry) -> None:
        used = max(entry.holds.values(), default=0)
        self.used += used - entry.used
        entry.used = used
