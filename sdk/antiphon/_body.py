"""The body of a request or a response, where it is in memory anyway."""

from __future__ import annotations

from typing import Any


def body_of(message: Any) -> bytes | None:
    """Of httpx or httpx2; None where it was streamed, or is still to be read."""
    try:
        content: bytes = message.content
    except RuntimeError:  # a class of its own in each library
        return None
    return content
