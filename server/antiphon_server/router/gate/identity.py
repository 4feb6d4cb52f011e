"""Whose turn is it: tenant, model, salt and conversation of a request, read from where clients put them.

Pure. A request without an id is served all the same, without reuse.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ID_LENGTH = 128
_TEXT_LENGTH = 512
"""Of a model's name or a salt; longer ones are hashed."""

_BODY_FIRST = ("conversation_id", "session_id")
_HEADERS = (
    "x-conversation-id",
    "x-session-id",
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "x-session-affinity",
    "session-id",
)
_BODY_LAST = ("prompt_cache_key",)
BODY_FIELDS = (*_BODY_FIRST, *_BODY_LAST, "model", "cache_salt")
"""Top-level fields of a body that :func:`identify` looks at."""


@dataclass(frozen=True, slots=True)
class Key:
    """What a frontier belongs to. KV of one key is never offered to another."""

    tenant: str
    model: str
    salt: str
    conversation: str


@dataclass(frozen=True, slots=True)
class Identity:
    """``key`` is None without a conversation id. ``final``: the client announces its last turn."""

    tenant: str
    key: Key | None
    turn: str | None = None
    parent: str | None = None
    final: bool = False


def clean_id(value: object) -> str | None:
    """A usable id: as it is when printable ASCII of 1..128 characters, hashed to hex otherwise; None if
    empty."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value:
        return None
    if len(value) <= ID_LENGTH and value.isascii() and value.isprintable():
        return value
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def header_text(value: str | None) -> str | None:
    """A header's text. Servers hand bytes on as Latin-1, while clients write UTF-8, as they do in bodies and
    paths: the same id is the same conversation wherever it stands."""
    if value is None or value.isascii():
        return value
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value


def identify(body: Mapping[str, Any], headers: Mapping[str, str], tenant: str) -> Identity:
    """Read the identity from a body's top-level fields and headers with lower-case names. ``tenant``: who
    calls, as :class:`~antiphon_server.router.gate.tenants.Tenants` found."""
    conversation = _conversation(body, headers)
    key = None
    if conversation is not None:
        model, salt = _text(body.get("model")), _text(body.get("cache_salt"))
        key = Key(_shared(tenant), _shared(model), _shared(salt), conversation)
    parent = headers.get("x-parent-session-id") or headers.get("x-dynamo-parent-session-id")
    return Identity(
        tenant,
        key,
        turn=clean_id(header_text(headers.get("x-turn-id"))),
        parent=clean_id(header_text(parent)),
        final=_true(headers.get("x-session-final") or headers.get("x-dynamo-session-final")),
    )


def _conversation(body: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    for name in _BODY_FIRST:
        if (found := clean_id(body.get(name))) is not None:
            return found
    for name in _HEADERS:
        if name in headers and (found := clean_id(header_text(headers[name]))) is not None:
            return found
    for name in _BODY_LAST:
        if (found := clean_id(body.get(name))) is not None:
            return found
    return None


_words: dict[str, str] = {}
_MOST_WORDS = 4096


def _shared(word: str) -> str:
    """One object for all equal words: what is remembered of very many conversations names few tenants and
    models."""
    if len(_words) >= _MOST_WORDS:
        _words.clear()
    return _words.setdefault(word, word)


def _text(value: object) -> str:
    if not isinstance(value, str):
        return ""
    # Kept for as long as the conversation is, so a client cannot have it be large.
    return value if len(value) <= _TEXT_LENGTH else clean_id(value) or ""


def _true(value: str | None) -> bool:
    return value is not None and value.strip().lower() in {"true", "1"}
