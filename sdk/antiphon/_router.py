"""A router as a client sees it: where it is, and what opens its door."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

CREDENTIALS = frozenset({"authorization", "api-key", "x-api-key"})
"""Headers that open doors, in lower case."""


@dataclass(frozen=True, slots=True)
class Router:
    """``base_url`` as the client has it, such as ``http://host:8000/v1``; ``headers`` carry credentials.

    ``transport`` is the ``httpx`` or ``httpx2`` client that reached it, held weakly: it knows proxies and
    certificates. Without one, or once that is closed, the SDK connects by itself.
    """

    base_url: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    transport: weakref.ref[Any] | None = field(default=None, repr=False, compare=False)
    final_header: str | None = field(default="X-Session-Final", repr=False, compare=False)

    @classmethod
    def of(
        cls,
        base_url: str,
        sent: Mapping[str, str],
        *,
        standing: Iterable[str] = (),
        transport: Any,
        final_header: str | None,
    ) -> Router:
        """The server of a call whose headers were ``sent``.

        It keeps the credentials among them and those named in ``standing``: what the client sends with each
        request, such as a tenant's name.
        """
        kept = CREDENTIALS | {name.lower() for name in standing}
        headers = sorted((name.lower(), value) for name, value in sent.items() if name.lower() in kept)
        return cls(base_url, tuple(headers), weakref.ref(transport), final_header)

    def conversation_url(self, conversation_id: str) -> str:
        """Where a conversation is ended. The id is percent-encoded, ``/`` included."""
        return f"{self.base_url.rstrip('/')}/conversations/{quote(conversation_id, safe='')}"

    def ending_headers(self) -> dict[str, str]:
        """Headers of the request that ends a conversation."""
        final = {self.final_header: "true"} if self.final_header else {}
        return {**dict(self.headers), **final}
