"""Which routers a conversation and its children have spoken to."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from antiphon._router import Router

MOST_CONTACTS = 1024
"""Beyond it the oldest is forgotten; its router then lets the KV go by itself."""


class Contacts:
    """Shared by a conversation and all its descendants. Thread-safe. A forked process starts with none: what
    its parent began is not its to end."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, Router], frozenset[str]] = {}

    def note(self, lineage: Sequence[str], router: Router) -> None:
        """Remember a router. ``lineage``: ids from the eldest conversation down to the one that spoke."""
        key = (lineage[-1], router)
        self._leave_to_parent()
        with self._lock:
            self._seen.pop(key, None)  # the key must hold the newest transport
            self._seen[key] = frozenset(lineage)
            while len(self._seen) > MOST_CONTACTS:
                del self._seen[next(iter(self._seen))]

    def take(self, conversation_id: str) -> dict[Router, list[str]]:
        """Remove and return what this conversation and its descendants spoke to: router -> their ids."""
        taken: dict[Router, list[str]] = {}
        self._leave_to_parent()
        with self._lock:
            for key in [key for key, lineage in self._seen.items() if conversation_id in lineage]:
                del self._seen[key]
                taken.setdefault(key[1], []).append(key[0])
        return taken

    def _leave_to_parent(self) -> None:
        if self._process != os.getpid():
            self.__init__()  # type: ignore[misc]  # the lock too, for a thread that is not here may hold it
