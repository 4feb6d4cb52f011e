"""Server-sent events as engines write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"


def data(event: Mapping[str, Any]) -> bytes:
    """An event without a name."""
    return b"data: " + orjson.dumps(event) + b"\n\n"


def named(event: Mapping[str, Any]) -> bytes:
    """An event that is named by its ``type``."""
    return b"event: " + str(event["type"]).encode() + b"\n" + data(event)
