"""Errors of the SDK.

::

    AntiphonError
    ├── ClientError             (TypeError)    not a client or node that the adapter can wrap
    ├── ConversationError       (ValueError)   an id that names no conversation
    ├── MissingDependencyError  (ImportError)  the adapter's library is not installed
    ├── TurnError               (ValueError)   a step that would spoil the history of an agent's loop
    └── WireError               (ValueError)   no such wire, or names that HTTP cannot carry

Nothing here is raised because a router is away: ending a conversation logs a warning instead.
"""

from __future__ import annotations


class AntiphonError(Exception):
    """Base of all errors that the SDK and its adapters raise."""


class ClientError(AntiphonError, TypeError):
    """The object given is not a client or node that the adapter can wrap."""


class ConversationError(AntiphonError, ValueError):
    """The id given names no conversation."""


class MissingDependencyError(AntiphonError, ImportError):
    """The library that an adapter adapts is not installed."""


class TurnError(AntiphonError, ValueError):
    """What is added to a turn, or asked of it, does not fit what it holds."""


class WireError(AntiphonError, ValueError):
    """There is no such wire, or its names cannot travel over HTTP."""
