"""Where two JSON values differ first, and how. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from antiphon._divergence import Kind
from antiphon._history import FREE

_ORDER = ("role", "reasoning", "content", "tool_calls", "function", "custom", "name")
"""Fields in the order in which templates write them; others come after."""

_NAMED = frozenset(_ORDER) | FREE | {"call_id", "id", "output", "text", "tool_call_id", "tool_use_id", "type"}
"""Fields that a path may name. Other names may be a caller's own, and private."""

_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_EXCERPT = 40
_LEAD = 12
"""Characters of an excerpt; of them, at most so many before the difference."""


class Difference(NamedTuple):
    """``path``: where, from the outermost value. ``before``, ``after``: what stands there."""

    kind: Kind
    path: str
    before: Any
    after: Any


def difference(before: Any, after: Any, path: str = "") -> Difference:
    """The first difference of two values that differ."""
    name = path.rpartition(".")[2]
    if isinstance(before, dict) and isinstance(after, dict):
        names = sorted({**before, **after}, key=lambda each: _ORDER.index(each) if each in _ORDER else 99)
        name = next(each for each in names if before.get(each) != after.get(each))
        if name in _NAMED:
            return difference(before.get(name), after.get(name), f"{path}.{name}" if path else name)
        return Difference(Kind.FIELD, path, before.get(name), after.get(name))
    if isinstance(before, list) and isinstance(after, list):
        at = common(before, after)
        was, now = (values[at] if at < len(values) else None for values in (before, after))
        return difference(was, now, f"{path}[{at}]")
    kind = Kind.FIELD
    if isinstance(before, str) and isinstance(after, str) and name != "role":
        kind = kind_of_text(before, after, free=name in FREE)
    elif name == "reasoning" and after is None:
        kind = Kind.REASONING
    return Difference(kind, path, before, after)


def kind_of_text(before: str, after: str, *, free: bool = False) -> Kind:
    """How two texts differ. ``free``: they are the arguments of a tool call."""
    if _unescaped(before) == _unescaped(after):
        return Kind.UNICODE
    first, second = _json(before), _json(after)
    if first is not None and first == second:
        return Kind.ARGUMENTS if free else Kind.RESERIALISED
    return Kind.EDITED


def common(before: Any, after: Any) -> int:
    """Length of the common prefix of two texts or two lists."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def excerpts(before: Any, after: Any) -> tuple[str, str]:
    """What two values say where they differ first, shortened."""
    texts = [_text(before), _text(after)]
    start = max(0, common(*texts) - _LEAD)
    first, second = (text[start : start + _EXCERPT] for text in texts)
    return first, second


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _json(text: str) -> Any:
    """The object or list that a text is; None where it is neither."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def _unescaped(text: str) -> str:
    """The text with its ``\\uXXXX`` read, pairs of surrogates joined."""
    read = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    return read.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
