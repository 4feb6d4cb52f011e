"""What a reply loses when LangChain writes it again, kept beside the message. Pure.

LangChain parses an assistant's message and later writes it anew: arguments of tool calls in other words,
fields that it does not know left out. Text that differs from what decode generated ends the prefix that can
be reused. So the fields that came differently are kept, with a digest of what LangChain would send: as long
as it would still send that, nobody has edited the message, and it goes back as it came.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
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
_WHOLE = frozenset({"id", "index", "role", "type"})
"""Fields that come whole in a stream, not piece by piece."""


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
    except (ValueError, KeyError, TypeError):
        pass
    return default


def assembled(deltas: Sequence[Mapping[str, Any]]) -> Message:
    """The message that a stream's deltas make up, fields that nobody knows included."""
    message: Message = _joined("", deltas)
    return message


def _joined(name: str, parts: Sequence[Any]) -> Any:
    """One field of its parts: text is concatenated, lists by ``index``, mappings by field; else the last."""
    if name in _WHOLE:
        return next((part for part in reversed(parts) if part != ""), "")
    if all(isinstance(part, str) for part in parts):
        return "".join(parts)
    if all(isinstance(part, Mapping) for part in parts):
        names = dict.fromkeys(field for part in parts for field in part)
        present = {field: [part[field] for part in parts if part.get(field) is not None] for field in names}
        return {field: _joined(field, values) for field, values in present.items() if values}
    if all(isinstance(part, list) for part in parts):
        return _by_index(item for part in parts for item in part)
    return parts[-1]


def _by_index(items: Iterable[Any]) -> list[Any]:
    groups: dict[object, list[Any]] = {}
    for place, item in enumerate(items):
        index = item.get("index") if isinstance(item, Mapping) else None
        groups.setdefault(("alone", place) if index is None else index, []).append(item)
    return [_joined("", group) if len(group) > 1 else group[0] for group in groups.values()]


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
