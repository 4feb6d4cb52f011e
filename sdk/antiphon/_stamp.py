"""What one model call must carry so that the server knows its conversation. Pure: no client, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from antiphon._conversation import Conversation
from antiphon._identity import CONVERSATION_FIELDS, CONVERSATION_HEADERS, new_id, wire_id
from antiphon._wire import Wire, wire_of

IDENTITY_FIELDS = frozenset(CONVERSATION_FIELDS)
IDENTITY_HEADERS = frozenset(CONVERSATION_HEADERS)


@dataclass(frozen=True, slots=True)
class Stamp:
    """What to add to a call: ``headers``, and fields of the JSON ``body``. Nothing in it is set already.

    ``identifies``: it names the conversation; False where the caller has named one.
    """

    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, str] = field(default_factory=dict)
    identifies: bool = False


def stamp(
    conversation: Conversation,
    *,
    turn: str | None = None,
    wire: Wire | str = Wire.default,
    headers: Iterable[str] = (),
    body: Iterable[str] = (),
) -> Stamp:
    """The stamp of one logical call.

    ``turn``: the call's id, the same on each of its retries; None makes a fresh one. ``headers`` and ``body``
    are the names that the caller has set. They win, whatever their case: a call that says itself which
    conversation it belongs to gets no second answer beside it, only its turn id.
    """
    wire = wire_of(wire)
    taken = {name.lower() for name in headers}
    fields = frozenset(body)
    own = {wire.conversation_header.lower()} if wire.conversation_header else set()
    identified = bool(
        taken & (IDENTITY_HEADERS | own) or fields & (IDENTITY_FIELDS | {wire.conversation_field})
    )

    offered: list[tuple[str | None, str | None]] = [(wire.turn_header, wire_id(turn) if turn else new_id())]
    if not identified:
        offered += [(wire.conversation_header, conversation.id), (wire.parent_header, conversation.parent)]
    return Stamp(
        headers={name: value for name, value in offered if name and value and name.lower() not in taken},
        body={} if identified or not wire.conversation_field else {wire.conversation_field: conversation.id},
        identifies=not identified,
    )
