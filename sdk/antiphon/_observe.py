"""What replies tell about a conversation, read beside the call: nothing of the client's is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from antiphon._conversation import Conversation


@dataclass(frozen=True, slots=True)
class Exchange:
    """One successful model call as an adapter saw it go by.

    ``turn``: its turn id; the same id is counted once. ``headers``: the reply's, names in any case.
    ``request``: the JSON body as sent; None where it is not at hand. ``reply``: the JSON body of a reply that
    came whole; None for a stream. ``ttft``: seconds from the request's start to the head of a streamed reply,
    which the router sends with the first token; None for whole replies.
    """

    turn: str | None
    headers: Mapping[str, str]
    request: bytes | None = None
    reply: bytes | None = None
    ttft: float | None = None


def observe(conversation: Conversation, exchange: Exchange) -> None:
    """Add a call to the conversation's statistics. Never raises, never blocks."""
