"""Where a request ceases to repeat the one before it, and what usually causes that."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What kind of difference it is."""

    MODEL = "model changed"
    SALT = "salt changed"
    TOOLS = "tools changed"
    TOOLS_REORDERED = "tools reordered"
    OPTIONS = "template options changed"
    REMOVED = "message removed"
    INSERTED = "message inserted"
    REORDERED = "messages reordered"
    ARGUMENTS = "arguments re-serialised"
    RESERIALISED = "JSON re-serialised"
    UNICODE = "unicode re-escaped"
    REASONING = "reasoning dropped"
    EDITED = "text edited"
    NULLED = 'content "" became null'
    FIELD = "field changed"
    ANSWER = "answer sent back otherwise"
    RENDERED = "rendered otherwise"


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between the requests of two turns that explains why little was reused.

    ``part``: field of the request body. ``index``: of the message in it, counted from 0; None where the part
    is none of messages. ``role``: the message's, or its type. ``path``: inside the message, such as
    ``tool_calls[0].function.arguments``; empty for the message itself. ``before``, ``after``: excerpts of at
    most 40 characters. These are the only words of the conversation in it; ``str()`` and ``repr()`` leave
    them out, so that both can be logged.
    """

    kind: Kind
    part: str
    index: int | None = None
    role: str | None = None
    path: str = ""
    before: str = field(default="", repr=False)
    after: str = field(default="", repr=False)

    @property
    def where(self) -> str:
        """Such as ``messages[4].tool_calls[0].function.arguments (assistant)``."""
        message = self.part if self.index is None else f"{self.part}[{self.index}]"
        inside = f"{message}.{self.path}".removesuffix(".").replace(".[", "[")
        return f"{inside} ({self.role})" if self.role else inside

    def __str__(self) -> str:
        fact, remedy = _TEXTS[self.kind]
        if self.kind is Kind.EDITED:
            remedy = _EDITED.get(self.role or "", remedy)
        return f"{self.where} {fact}. {remedy}"


_VERBATIM = "send the reply as it came, with antiphon_langgraph.chat_openai or Conversation.turn()."
_CHILD = "If two agents share this conversation, give each its own with child()."

_EDITED = {
    **dict.fromkeys(
        ("system", "developer"),
        f"A clock or other changing text in it ends the reuse at once: move that to the end. {_CHILD}",
    ),
    **dict.fromkeys(
        ("tool", "function", "function_call_output"),
        "Shortening earlier results does that: do it seldom, many at a time, and leave the rest.",
    ),
    "assistant": f"Frameworks parse replies and write them again: {_VERBATIM}",
}

_TEXTS = {
    Kind.MODEL: (
        "has changed",
        "One model cannot use the KV of another: stay with one in a conversation, or expect it.",
    ),
    Kind.SALT: ("has changed", "KV is never shared between salts: keep one for the whole conversation."),
    Kind.TOOLS: (
        "have changed",
        "Templates put tools before all messages: offer the same ones, word for word, on every turn.",
    ),
    Kind.TOOLS_REORDERED: (
        "are the same in another order",
        "Templates write them in the order in which they come: sort them, their fields too.",
    ),
    Kind.OPTIONS: (
        "have changed",
        "Templates render the history by them: keep them the same for the whole conversation.",
    ),
    Kind.REMOVED: (
        "of the last turn is no longer there",
        f"Trimming and summarising do that, and later turns are reused again: nothing to mend then. {_CHILD}",
    ),
    Kind.INSERTED: (
        "is new, in front of what was sent before",
        "What changes from turn to turn belongs at the end of the messages.",
    ),
    Kind.REORDERED: (
        "and others are in another order",
        "Keep messages in the order in which they were sent first, results of parallel tools too.",
    ),
    Kind.ARGUMENTS: (
        "is the same JSON in other text",
        f"Frameworks parse tool calls and write them again: {_VERBATIM}",
    ),
    Kind.RESERIALISED: (
        "is the same JSON in other text",
        "It is dumped anew on each turn: dump it once and keep the text.",
    ),
    Kind.UNICODE: (
        "is the same text with other escapes",
        f"JSON is dumped with and without ensure_ascii: {_VERBATIM}",
    ),
    Kind.REASONING: (
        "is no longer there",
        f"Frameworks drop the reasoning of replies: {_VERBATIM}",
    ),
    Kind.EDITED: ("is another text", "What was sent once must stay as it is: add what is new at the end."),
    Kind.NULLED: (
        "was empty text and is null now",
        f"Some templates render that differently: {_VERBATIM}",
    ),
    Kind.FIELD: ("has changed", "What was sent once must stay as it is, ids and names too."),
    Kind.ANSWER: (
        "is what differs, as sent back, for all that was sent before is sent again unchanged",
        f"Frameworks re-serialise tool calls and drop reasoning: {_VERBATIM}",
    ),
    Kind.RENDERED: (
        "come again unchanged, and yet the model's chat template makes another prompt of them",
        "Many drop earlier reasoning once the user speaks again, write tool calls anew, or tell the date: "
        "only another template changes that.",
    ),
}
