"""What a conversation's id may look like on the wire."""

from __future__ import annotations

import hashlib
import re
import uuid

from antiphon._errors import ConversationError

LONGEST_ID = 128
"""Characters."""

CONVERSATION_FIELDS = ("conversation_id", "session_id")
CONVERSATION_HEADERS = (
    "x-conversation-id",
    "x-session-id",
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "x-session-affinity",
    "session-id",
)
"""Where a router looks for a conversation's id, in its order: fields of the body, then headers."""

_RETRY_PREFIX = "stainless-python-retry-"

_AS_IS = re.compile(rf"(?!\.{{1,2}}$)[!-~](?:[ -~]{{0,{LONGEST_ID - 2}}}[!-~])?")


def new_id() -> str:
    """A fresh random id: 32 hex characters."""
    return uuid.uuid4().hex


def wire_id(value: str) -> str:
    """The id as it travels: itself where it is 1..128 printable ASCII characters, else its SHA-256 in hex.

    Hashed are also ids with blanks at either end, which HTTP strips from a header and not from a body, and
    ``.`` and ``..``, which vanish from a URL's path.

    Raises:
        ConversationError: empty, or not a string.
    """
    if not isinstance(value, str):
        raise ConversationError(
            f"conversation id {value!r} is a {type(value).__name__}, not a str: pass str(...) of it"
        )
    if not value:
        raise ConversationError("conversation id is empty: pass a name for it, or None for a random one")
    if _AS_IS.fullmatch(value):
        return value
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def turn_of_key(idempotency_key: str) -> str:
    """The turn id in an idempotency key, which openai keeps over retries and calls a retry's from the first
    try on."""
    return idempotency_key.removeprefix(_RETRY_PREFIX)
