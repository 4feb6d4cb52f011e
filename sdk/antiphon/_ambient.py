"""Conversations that a framework knows of by itself.

An adapter registers a resolver; ``current()`` asks it where no ``with`` block surrounds the code. It is asked
on every model call, so it must be quick, and must answer None wherever its framework is not running.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon._conversation import Conversation

Resolver = Callable[[], "Conversation | None"]

_log = logging.getLogger("antiphon")
_resolvers: dict[str, Resolver] = {}


def register(name: str, resolver: Resolver) -> None:
    """Ask ``resolver`` from now on. ``name``: the framework's; a second one of it replaces the first."""
    _resolvers[name] = resolver


def ambient() -> Conversation | None:
    """The conversation of the first framework that knows one. A resolver that fails knows none."""
    for name, resolver in tuple(_resolvers.items()):  # an adapter may be imported meanwhile
        try:
            found = resolver()
        except Exception:
            _log.debug("cannot ask %s for its conversation", name, exc_info=True)
            continue
        if found is not None:
            return found
    return None
