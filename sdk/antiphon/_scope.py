"""Which conversation surrounds the running code.

A scope is never undone by token alone: a generator may be entered in one task and closed in another, where
``ContextVar.reset`` raises ValueError. Such a scope is marked closed, so that the context it leaked into no
longer sees it either.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon._conversation import Conversation


@dataclass(slots=True, eq=False)
class Scope:
    """One entered ``with`` block."""

    conversation: Conversation
    outer: Scope | None
    closed: bool = False
    token: Token[Scope | None] = field(init=False)


_innermost: ContextVar[Scope | None] = ContextVar("antiphon_conversation", default=None)


def innermost() -> Scope | None:
    """The innermost open scope of this context."""
    scope = _innermost.get()
    while scope is not None and scope.closed:
        scope = scope.outer
    return scope


def enter(conversation: Conversation) -> Scope:
    """Open a scope in this context."""
    scope = Scope(conversation, innermost())
    scope.token = _innermost.set(scope)
    return scope


def leave(scope: Scope) -> None:
    """Close a scope, from its own context or any other, in any order."""
    top = _innermost.get()
    try:
        _innermost.reset(scope.token)
    except ValueError:
        scope.closed = True
    else:
        if top is not scope:  # left out of order: what was entered later stays
            scope.closed = True
            _innermost.set(top)
    del scope.token  # of what was there before; contexts that keep closed scopes must not keep all of these


class Excursion:
    """Code that runs in a conversation piece by piece, each piece in a ``with`` block, in any context.

    Scopes that a piece leaves open are there again in the next one, and never outside.
    """

    __slots__ = ("_inside", "_token")

    def __init__(self, conversation: Conversation) -> None:
        self._inside: Scope | None = Scope(conversation, None)

    def __enter__(self) -> None:
        self._token = _innermost.set(self._inside)

    def __exit__(self, *error: object) -> None:
        inside = _innermost.get()
        try:
            _innermost.reset(self._token)
        except ValueError:  # a coroutine thrown away in mid-air, finished in another context: not ours to set
            return
        self._inside = inside
