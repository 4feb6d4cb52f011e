"""What replies tell about a conversation, read beside the call: nothing of the client's is touched."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from antiphon._collapse import FIRST, JUDGED, Collapse, collapse
from antiphon._comparison import divergence_of
from antiphon._divergence import Divergence, Kind
from antiphon._history import usage_of
from antiphon._outcome import UNKNOWN, Outcome, outcome_of
from antiphon._statistics import MOST_WARNED, Kept, registry

if TYPE_CHECKING:
    from antiphon._conversation import Conversation

_log = logging.getLogger("antiphon")

MOST_READ_BYTES = 64 * 1024
"""Of a whole reply that is read for the prompt's length; longer ones leave it unknown."""

_GUIDE = 'More under "Why did my reuse drop": docs/why-reuse-drops.md'


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
    """Add a call to the conversation's statistics; warn once if it has ceased to reuse what is there.

    Never raises, never blocks. It costs microseconds; only where little was reused, or where the header
    lacks the prompt's length, bodies are parsed.
    """
    try:
        _observe(conversation.id, exchange)
    except Exception:
        _log.debug("a call was not observed", exc_info=True)


def _observe(conversation: str, exchange: Exchange) -> None:
    outcome = outcome_of(exchange.headers)
    if outcome.prompt is None and len(exchange.reply or b"") <= MOST_READ_BYTES:
        prompt, _ = usage_of(exchange.reply)
        outcome = replace(outcome, prompt=prompt)
    keeps = exchange.request is not None and outcome.path != UNKNOWN
    kept = Kept(exchange.request or b"", exchange.reply) if keeps else None
    last = registry.add(conversation, exchange.turn, outcome, exchange.ttft, kept)
    if last is None or outcome.reason not in JUDGED:
        return
    before = last.kept
    answer = usage_of(before.reply)[1] if before and outcome.held is None else None
    found = collapse(outcome, last.outcome, answer or 0)
    if found is None:
        return
    divergence = None
    if before and kept:
        divergence = divergence_of(
            before.request, kept.request, before.reply, differs=found.certain, intact=found.intact
        )
    if not found.certain and not _explains(outcome, divergence):
        return
    count = registry.diverged(conversation, divergence)
    if count:
        _log.warning("%s", _warning(conversation, found, divergence, last=count == MOST_WARNED))


def _explains(outcome: Outcome, divergence: Divergence | None) -> bool:
    """A router that knows nothing of the conversation may have been started anew; under another model or salt
    it never knows any."""
    if outcome.reason == FIRST:
        return divergence is not None and divergence.kind in (Kind.MODEL, Kind.SALT)
    return divergence is not None


def _warning(conversation: str, found: Collapse, divergence: Divergence | None, *, last: bool) -> str:
    """No words of the conversation are in it."""
    why = divergence or "The last two requests are not at hand to say where their histories part."
    no_more = f" This was said of {MOST_WARNED} conversations and is not said again." if last else ""
    return (
        f"conversation {conversation}: only {found.matched} of {found.reusable} tokens could be reused. "
        f"{why}{no_more} {_GUIDE}"
    )
