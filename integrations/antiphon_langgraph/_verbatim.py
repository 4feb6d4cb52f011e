"""What a reply loses when LangChain writes it again, kept beside the message. Pure.

LangChain parses an assistant's message and later writes it anew: arguments of tool calls in other words,
fields that it does not know left out. Text that differs from what decode generated ends the prefix that can
be reused. So the fields that came differently are kept, with a digest of what LangChain would send: as long
as it would still send that, nobody has edited the message, and it goes back as it came.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

KEPT = "antiphon_verbatim"
"""Key in ``additional_kwargs``. Its value is text, for two texts always merge: what two messages merged into
one have kept no longer reads, and so counts as edited."""

Message = dict[str, Any]
"""A chat message as JSON."""

_NOT_RESUBMITTED = frozenset({"annotations", "audio", "content", "function_call", "name", "parsed", "role"})
"""Fields of replies that requests lack or have in another form, and those treated one by one."""
_REPLY_ONLY = frozenset({"index", "parsed_arguments"})
"""The same for fields of tool calls."""
_NOTHING: tuple[Any, ...] = (None, "", [], {})


def keep(raw: Message, default: Message, origin: str) -> str | None:
    """What to keep of a reply; None where the default says it all.

    ``raw``: the message as it came. ``default``: what LangChain makes of it. ``origin``: the model and the
    server that it came from; it goes back verbatim to these alone.
    """
    fields = {
        name: value for name, value in raw.items() if value not in _NOTHING and name not in _NOT_RESUBMITTED
    }
    if isinstance(content := raw.get("content"), str | list):  # null is refused by some where no call is made
        fields["content"] = content
    if "tool_calls" in fields:
        calls = [{name: call[name] for name in call if name not in _REPLY_ONLY} for call in raw["tool_calls"]]
        fields["tool_calls"] = calls
        if _meanings(calls) != _meanings(default.get("tool_calls") or ()):  # LangChain mended broken JSON
            del fields["tool_calls"]
    fields = {name: value for name, value in fields.items() if default.get(name) != value}
    return json.dumps({"of": _digest(default, origin), "raw": fields}) if fields else None


def restore(default: Message, kept: object, origin: str) -> Message:
    """The message to send: as it came where nobody edited it, else the default."""
    if not isinstance(kept, str):
        return default
    try:
        found = json.loads(kept)
        if found["of"] == _digest(default, origin):
            return {**default, **found["raw"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return default


def _digest(default: Message, origin: str) -> str:
    """Of what LangChain would send. A name (agents give theirs to each reply) and the form of the content
    (text, or blocks of it) may change: neither edits what was said."""
    said = {**default, "name": None, "content": _text(default.get("content"))}
    return hashlib.sha256(json.dumps([origin, said], sort_keys=True, default=repr).encode()).hexdigest()


def _text(content: Any) -> Any:
    if not isinstance(content, list):
        return content or ""
    texts: list[str] = []
    for block in content:
        text = block.get("text") if isinstance(block, Mapping) and block.get("type") == "text" else None
        if not isinstance(text, str):
            return content
        texts.append(text)
    return "".join(texts)


def _meanings(calls: Iterable[Mapping[str, Any]]) -> list[str]:
    """What calls say, however they write it, in any order."""
    said: list[str] = []
    for call in calls:
        function = call.get("function") or {}
        each = (call.get("id"), function.get("name"), _meaning(function.get("arguments")))
        said.append(json.dumps(each, sort_keys=True))
    return sorted(said)


def _meaning(arguments: Any) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, TypeError):
        return arguments
