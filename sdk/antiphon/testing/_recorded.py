"""A request as a server saw it, and which conversation it belongs to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

from antiphon._calls import api_of_model_call
from antiphon._identity import CONVERSATION_FIELDS, CONVERSATION_HEADERS, LONGEST_ID
from antiphon._outcome import Outcome

_LAST_FIELDS = ("prompt_cache_key",)
_PARENT_HEADERS = ("x-parent-session-id", "x-dynamo-parent-session-id")
_FINAL_HEADERS = ("x-session-final", "x-dynamo-session-final")
_CONVERSATIONS = "/conversations/"


@dataclass(frozen=True, slots=True)
class Recorded:
    """``path``: as sent, with its query. ``headers``: names in lower case. ``body``: parsed where it is JSON,
    else bytes.

    How it was answered: ``status``, None where that is not known. ``answer``: what of the reply belongs into
    the history, in the form in which it is sent back: a list of messages (of items, for the Responses API), a
    completion's text, None where there is none or it is not known. ``reuse``: what ``X-Antiphon-Reuse`` said,
    None where it was not there.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    status: int | None = None
    answer: list[Any] | str | None = None
    reuse: Outcome | None = None

    @property
    def is_call(self) -> bool:
        """It is a model call: chat completions, completions, responses or messages."""
        return api_of_model_call(self.method, self.path) is not None

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of a JSON body."""
        return self.body if isinstance(self.body, Mapping) else {}

    @property
    def conversation(self) -> str | None:
        """Id of the conversation, from where the router takes it: fields and headers in its order, or the
        path. Ids that are no 1..128 printable ASCII characters are hashed, as the router does it."""
        _, found, named = self.path.partition("?")[0].partition(_CONVERSATIONS)
        if found:
            return _clean(_text(unquote_to_bytes(named).decode("latin-1")))
        candidates = (
            *(self.fields.get(name) for name in CONVERSATION_FIELDS),
            *(_text(self.headers.get(name)) for name in CONVERSATION_HEADERS),
            *(self.fields.get(name) for name in _LAST_FIELDS),
        )
        return next((known for value in candidates if (known := _clean(value)) is not None), None)

    @property
    def turn(self) -> str | None:
        """Id of the logical call, the same on each of its retries."""
        return _clean(_text(self.headers.get("x-turn-id")))

    @property
    def parent(self) -> str | None:
        """Id of the conversation that started this one."""
        return _clean(_text(self._first(_PARENT_HEADERS)))

    @property
    def final(self) -> bool:
        """It announces the conversation's end."""
        return (self._first(_FINAL_HEADERS) or "").strip().lower() in ("true", "1")

    def _first(self, names: tuple[str, ...]) -> str | None:
        return next((self.headers[name] for name in names if self.headers.get(name)), None)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def parsed(body: bytes | str) -> Any:
    """The body as JSON; as it is where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body


def _clean(value: object) -> str | None:
    """A usable id; None where there is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value:
        return None
    if len(value) <= LONGEST_ID and value.isascii() and value.isprintable():
        return value
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def _text(value: str | None) -> str | None:
    """A header's text: clients write UTF-8, which servers read as Latin-1."""
    if value is None or value.isascii():
        return value
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value
