"""The history that a model call carries, and what of it is the same in two calls. Pure.

A null field and one that is missing are the same here, as they are in a prompt; the order of fields does not
matter either. Nothing else is forgiven.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from antiphon.testing._recorded import Recorded

History = list[Any] | str
"""Messages, items of the Responses API, or the text of a completion's prompt."""

_SETTING = ("tools", "system", "instructions")
"""Fields that stand before all messages in the prompt."""

_AROUND = 24
"""Characters shown on each side of a difference."""

_MISSING = object()


def history_field(call: Recorded) -> str:
    """The field of its body that holds the history."""
    return next((name for name in ("input", "prompt") if name in call.fields), "messages")


def history_of(call: Recorded) -> History:
    """The history in its body. An ``input`` that is text is a user's message."""
    name = history_field(call)
    found = call.fields.get(name)
    if isinstance(found, str):
        return [{"role": "user", "content": found}] if name == "input" else found
    return list(found) if isinstance(found, Sequence) else []


def setting_of(call: Recorded) -> dict[str, Any]:
    """Its tools and instructions."""
    return {name: call.fields[name] for name in _SETTING if call.fields.get(name)}


def extended(history: History, answer: History) -> History:
    """The history with what was answered."""
    if isinstance(history, str):
        return history + (answer if isinstance(answer, str) else "")
    return [*history, *(answer if isinstance(answer, list) else ())]


def text_of(setting: Mapping[str, Any], history: History) -> str:
    """A text that grows at its end when the history does, standing for the prompt."""
    if isinstance(history, str):
        return history
    return "".join(f"{_canonical(part)}\n" for part in (*([setting] if setting else ()), *history))


def _canonical(value: Any) -> str:
    return json.dumps(_without_nulls(value), ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def shared(before: str, after: str) -> int:
    """Characters that both begin with."""
    pairs = enumerate(zip(before, after, strict=False))
    return next((place for place, (old, new) in pairs if old != new), min(len(before), len(after)))


def difference(before: Any, after: Any, where: str) -> str | None:
    """The first difference, in words; None where both are the same. ``where``: what both are called."""
    return next(_differences(before, after, where), None)


def _differences(before: Any, after: Any, where: str) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys((*before, *after)):
            yield from _differences(before.get(name), after.get(name), f"{where}.{name}")
    elif isinstance(before, list) and isinstance(after, list):
        for place, (old, new) in enumerate(zip_longest(before, after, fillvalue=_MISSING)):
            yield from _differences(old, new, f"{where}[{place}]")
    elif isinstance(before, str) and isinstance(after, str):
        if before != after:
            place = shared(before, after)
            old, new = _excerpt(before, place), _excerpt(after, place)
            yield f"{where} differs from character {place} on: {old} became {new}"
    elif type(before) is not type(after) or before != after:
        if before is _MISSING:
            yield f"{where} was added: {_shown(after)}"
        elif after is _MISSING:
            yield f"{where} is gone: {_shown(before)}"
        else:
            yield f"{where} was {_shown(before)} and became {_shown(after)}"


def _excerpt(text: str, place: int) -> str:
    start, end = max(0, place - _AROUND), place + _AROUND
    return f"{'...' if start else ''}{text[start:end]!r}{'...' if end < len(text) else ''}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 6 * _AROUND else f"{text[: 6 * _AROUND]}..."
