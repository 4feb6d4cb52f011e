"""Where conversations were served last, for very many of them."""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from antiphon_server.router.gate.identity import Key

_SCOPES = 8
"""Models and salts remembered of one conversation; some use several models in turn."""


@dataclass(frozen=True, slots=True)
class Place:
    """Names of the workers that served a conversation last. ``filled``: tokens of its prompt when that
    prefill worker computed one, 0 if unknown; those of turns that went straight to decode it never saw."""

    prefill: str | None = None
    decode: str | None = None
    filled: int = 0


NOWHERE = Place()

_Entry = tuple[int, str | None, str | None, int]
"""Model and salt as a number, prefill, decode, tokens filled."""


class Places:
    """The last places of at most ``limit`` conversations, the least recent forgotten first.

    Ids are kept as digests: a conversation takes some 400 bytes, however long its id.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[bytes, tuple[_Entry, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, key: Key) -> Place:
        """Where the conversation was, or nowhere."""
        entries = self._entries.get(digest(key.tenant, key.conversation))
        if entries is None:
            return NOWHERE
        scope = _scope(key.model, key.salt)
        found = next((entry for entry in entries if entry[0] == scope), None)
        return Place(*found[1:]) if found is not None else NOWHERE

    def knows(self, tenant: str, conversation: str) -> bool:
        """True when the conversation was served here, with any model and salt."""
        return digest(tenant, conversation) in self._entries

    def remember(self, key: Key, place: Place) -> None:
        """The conversation was served at ``place``."""
        name, scope = digest(key.tenant, key.conversation), _scope(key.model, key.salt)
        others = tuple(entry for entry in self._entries.get(name, ()) if entry[0] != scope)
        entry = scope, _shared(place.prefill), _shared(place.decode), place.filled
        self._entries[name] = (*others[1 - _SCOPES :], entry)
        self._entries.move_to_end(name)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def forget(self, tenant: str, conversation: str) -> None:
        """The conversation is over, with every model and salt."""
        self._entries.pop(digest(tenant, conversation), None)


def digest(tenant: str, conversation: str) -> bytes:
    """What stands for a conversation; the same in every router."""
    return blake2b(f"{tenant}\0{conversation}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


@lru_cache(maxsize=1024)
def _scope(model: str, salt: str) -> int:
    """Kept, so that conversations of one model share the number."""
    text = f"{model}\0{salt}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def _shared(name: str | None) -> str | None:
    return sys.intern(name) if name is not None else None
