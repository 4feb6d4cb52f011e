"""Conversations that a framework knows of by itself.

An adapter registers a resolver when it is imported. ``current()`` gives it the conversation of the innermost
``with`` block, None where there is none. A block wins: the resolver may then name a child of it, for what the
framework calls beside the conversation, and nothing else. It is asked on every model call, so it must be
quick, and must answer None wherever its framework has nothing to say. Adapters of ours are imported here,
once their framework is there, so that users need not.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon._conversation import Conversation

Resolver = Callable[["Conversation | None"], "Conversation | None"]

_log = logging.getLogger("antiphon")
_resolvers: dict[str, Resolver] = {}
_awaited = {"langgraph.pregel": "antiphon_langgraph"}
"""Adapters not imported yet, by the module without which their framework does not run. Entry points would
find them too, but reading those of an environment takes 0.1 s."""


def register(name: str, resolver: Resolver) -> None:
    """Ask ``resolver`` from now on. ``name``: the framework's; a second one of it replaces the first."""
    _resolvers[name] = resolver


def ambient(block: Conversation | None) -> Conversation | None:
    """The conversation of the first framework that knows one, else the block's. A resolver that fails knows
    none."""
    if _awaited:
        _attach()
    for name, resolver in tuple(_resolvers.items()):  # an adapter may be imported meanwhile
        try:
            found = resolver(block)
        except Exception:
            _log.debug("cannot ask %s for its conversation", name, exc_info=True)
            continue
        if found is not None:
            return found
    return block


def _attach() -> None:
    for framework, adapter in tuple(_awaited.items()):
        if framework in sys.modules:
            try:
                importlib.import_module(adapter)  # other threads wait for it too, so that none goes without
            except Exception:
                _log.debug("cannot import %s", adapter, exc_info=True)
            _awaited.pop(framework, None)
