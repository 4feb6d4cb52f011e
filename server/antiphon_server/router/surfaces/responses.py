"""Response ids: which conversation a stored response belongs to, and which decode engine has it.

Engines keep stored responses in their own memory, so a turn that builds on one goes to the engine that made
it. The router chooses the ids. Each is marked with its tenant: another tenant's, or one that nobody gave out,
is unknown without asking any engine, on every router and after restarts alike.
"""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from dataclasses import dataclass, replace
from hashlib import blake2b

import msgspec

from antiphon_server.router.errors import NotFoundError
from antiphon_server.router.gate.identity import Identity, Key
from antiphon_server.router.legs import Ask

_PREFIX = "resp_"
_RANDOM = 24
"""Hex digits: 96 bits that cannot be guessed."""
_MARK = 16
_ID = re.compile(rf"{_PREFIX}[0-9a-f]{{{_RANDOM + _MARK}}}")


@dataclass(frozen=True, slots=True)
class Stored:
    """``key``: of the conversation it belongs to. ``worker``: name of the decode engine that made it."""

    key: Key
    worker: str


class Responses:
    """The newest ``limit`` response ids. Older ones lose their conversation, and engines are asked for
    them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stored: OrderedDict[str, Stored] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stored)

    def retune(self, limit: int) -> None:
        """Remember so many from the next one on."""
        self._limit = limit

    def admit(self, ask: Ask, identity: Identity) -> tuple[Ask, Identity]:
        """Before a turn of the responses surface is planned: its response gets an id, and without an id of
        its own it belongs to the conversation of the response that it follows. Other surfaces' turns stay as
        they are.

        Raises:
            NotFoundError: it follows a response that is not the tenant's.
        """
        if ask.surface != "responses":
            return ask, identity
        if ask.previous is not None:
            self.check(identity.tenant, ask.previous)
            if identity.key is None:
                stored = self.find(ask.previous)
                key = stored.key if stored is not None else _key(ask, identity.tenant, ask.previous)
                identity = replace(identity, key=key)
        return replace(ask, response_id=_issue(identity.tenant)), identity

    def check(self, tenant: str, response_id: str) -> None:
        """See that the id was given to this tenant.

        Raises:
            NotFoundError: it was not.
        """
        head = response_id[: len(_PREFIX) + _RANDOM]
        if _ID.fullmatch(response_id) is None or response_id != head + _mark(tenant, head):
            raise not_found(response_id)

    def found(self, ask: Ask, identity: Identity, worker: str) -> None:
        """The response that this turn follows turned out to be there. ``worker``: the engine's name."""
        if ask.previous is not None and identity.key is not None:
            self._put(ask.previous, Stored(identity.key, worker))

    def keep(self, ask: Ask, identity: Identity, worker: str) -> None:
        """Decode has begun to answer: remember where the response is. ``worker``: the engine's name."""
        if ask.response_id is None or msgspec.json.decode(ask.body.get("store", b"null")) is False:
            return
        key = identity.key or _key(ask, identity.tenant, ask.response_id)
        self._put(ask.response_id, Stored(key, worker))

    def _put(self, response_id: str, stored: Stored) -> None:
        self._stored[response_id] = stored
        while len(self._stored) > self._limit:
            self._stored.popitem(last=False)

    def find(self, response_id: str | None) -> Stored | None:
        """Where a response is, None if that is not known (any more)."""
        if response_id is None or response_id not in self._stored:
            return None
        self._stored.move_to_end(response_id)
        return self._stored[response_id]


def not_found(response_id: str) -> NotFoundError:
    """In engines' words."""
    return NotFoundError(f"Response with id '{response_id[:128]}' not found.")


def _key(ask: Ask, tenant: str, conversation: str) -> Key:
    model, salt = ask.named.get("model"), ask.named.get("cache_salt")
    return Key(
        tenant, model if isinstance(model, str) else "", salt if isinstance(salt, str) else "", conversation
    )


def _issue(tenant: str) -> str:
    head = _PREFIX + secrets.token_hex(_RANDOM // 2)
    return head + _mark(tenant, head)


def _mark(tenant: str, head: str) -> str:
    # No secret is needed: an engine knows only ids with their makers' marks, so a mark made up for another
    # tenant names nothing.
    text = f"{tenant}\0{head}".encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=_MARK // 2).hexdigest()
