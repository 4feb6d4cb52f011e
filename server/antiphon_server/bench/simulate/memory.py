"""What an engine's KV memory holds: of requests that run, of leases, and of conversations whose blocks are
free but not yet used for something else."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field


class Talk:
    """A conversation's text, told only by lengths. ``shared``: tokens that every conversation begins with."""

    __slots__ = ("_at", "_kept", "name", "shared", "turn")

    def __init__(self, name: str, shared: int = 0) -> None:
        self.name = name
        self.shared = shared
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
    """``tokens`` of a conversation as it stood at ``turn``. ``holds``: who uses how many of them."""

    tokens: int = 0
    turn: int = 0
    used: int = 0
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

    def found(self, talk: Talk, prompt: int) -> int:
        """Tokens of the prompt's beginning that need not be computed; at least one is."""
        if not self._caches:
            return 0
        entry = self._entries.get(talk.name)
        have = talk.common(entry.turn, entry.tokens) if entry is not None else 0
        have = min(max(have, min(talk.shared, prompt)), prompt - 1)
        return have // self._block * self._block

    def hold(self, talk: Talk, owner: object, tokens: int) -> bool:
        """Take room for so many tokens of the conversation, what is there of them included. False: there is
        too little."""
        entry = self._entries.get(talk.name)
        used = entry.used if entry is not None else 0
        if self.used + max(0, tokens - used) > self.capacity:
            return False
        if entry is None:
            entry = self._entries[talk.name] = _Entry()
        self._free -= self._idle.pop(talk.name, 0)
        entry.holds[owner] = tokens
        self._count(entry)
        while self.used + self._free > self.capacity:
            name, freed = self._idle.popitem(last=False)
            self._free -= freed
            del self._entries[name]
        return True

    def fill(self, talk: Talk, owner: object, tokens: int, *, new_owner: object = None) -> None:
        """The conversation's KV of so many tokens is there. ``new_owner``: who holds it from now on."""
        entry = self._entries[talk.name]
        entry.tokens, entry.turn = tokens, talk.turn
        if new_owner is not None:
            del entry.holds[owner]
            entry.holds[new_owner] = tokens
            self._count(entry)

    def drop(self, name: str, owner: object) -> None:
        """The owner needs it no more."""
        entry = self._entries.get(name)
        if entry is None or entry.holds.pop(owner, None) is None:
            return
        self._count(entry)
        if entry.holds:
            return
        if self._caches and entry.tokens:
            self._idle[name] = entry.tokens
            self._free += entry.tokens
        else:
            del self._entries[name]

    def _count(self, entry: _Entry) -> None:
        used = max(entry.holds.values(), default=0)
        self.used += used - entry.used
        entry.used = used
