"""JSON that stands in JSON as text."""

from __future__ import annotations

from typing import Any

import msgspec


def opened(value: Any) -> Any:
    """What a text of an object or a list says; all else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return value
    return value
