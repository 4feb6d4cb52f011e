"""Requests that no hand-over can carry, so that decode serves them by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from antiphon_server.router.legs.form import Alone, Body, value
from antiphon_server.router.plan.reasons import Reason


def given(name: str, reason: Reason) -> Alone:
    """The field is there and not null."""
    return lambda body: reason if value(body, name) is not None else None


def wanted(name: str, reason: Reason) -> Alone:
    """The field says yes."""
    return lambda body: reason if value(body, name) else None


def several(*names: str) -> Alone:
    """More than one answer: KV is handed over once."""

    def test(body: Body) -> Reason | None:
        # Engines take "2" and 2.0 for 2.
        many = any(value(body, name) not in (None, 1) for name in names)
        return Reason.MULTIPLE if many else None

    return test


def batch(body: Body) -> Reason | None:
    """Several prompts, or embeddings in place of one."""
    if "prompt_embeds" in body:
        return Reason.BATCH
    prompt = bytes(body.get("prompt", b"")).lstrip()
    begins = prompt[1:].lstrip()[:1] if prompt.startswith(b"[") else b""
    return Reason.BATCH if begins in {b'"', b"[", b"{"} else None


def media(name: str, *kinds: str) -> Alone:
    """A part of the history is not text: the prompt's ids do not say it all. ``name``: the field of the
    history; ``kinds``: types of such parts."""
    quoted = re.compile(f'"(?:{"|".join(map(re.escape, kinds))})"'.encode())

    def test(body: Body) -> Reason | None:
        history = body.get(name)
        # Most histories do not even have the words, and then need no parsing.
        if history is None or quoted.search(memoryview(history)) is None:
            return None
        parsed = msgspec.json.decode(history)
        return Reason.MEDIA if any(part.get("type") in kinds for part in _parts(parsed)) else None

    return test


def engine_tools(body: Body) -> Reason | None:
    """Tools that the engine runs itself: it then answers in several rounds, and would use prefill's handle in
    each."""
    tools = value(body, "tools")
    kinds = (
        {tool.get("type") for tool in tools if isinstance(tool, dict)} if isinstance(tools, list) else set()
    )
    return Reason.BUILTIN if kinds - {None, "function", "custom", "namespace"} else None


def _parts(item: Any) -> Iterator[dict[str, Any]]:
    """The items of a history and all that they hold, down to the parts of tool results."""
    if isinstance(item, list):
        for one in item:
            yield from _parts(one)
    elif isinstance(item, dict):
        yield item
        for name in ("content", "output"):
            yield from _parts(item.get(name))
