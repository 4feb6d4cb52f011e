"""Traces made by hand, with figures instead of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon_server.traces.trace import Call, Conversation, Trace


def growing(
    turns: int,
    *,
    start: int = 20_000,
    new: int = 500,
    answer: int = 300,
    gap: float | None = 10.0,
    seconds: float = 5.0,
    lost: int = 0,
    **more: Any,
) -> tuple[Call, ...]:
    """A conversation that appends: each prompt is the last one, its answer, and ``new`` tokens. ``lost``:
    tokens at the end of what was held that each turn rewrites."""
    calls: list[Call] = []
    prompt = start
    for index in range(turns):
        shared = prompt - new - lost if index else None
        gaps = gap if index else None
        calls.append(Call(prompt, answer, gap=gaps, seconds=seconds, shared=shared, **more))
        prompt += answer + new
    return tuple(calls)


def traffic(*conversations: Sequence[Call], **more: Any) -> Trace:
    """Conversations of these calls."""
    named = tuple(Conversation(f"secret-{i}", tuple(calls)) for i, calls in enumerate(conversations))
    return Trace("by hand", named, **more)


def timed(calls: Sequence[Call], begin: float = 0.0) -> tuple[Call, ...]:
    """The same calls with a clock: each begins its gap after the last one's end."""
    at, found = begin, []
    for call in calls:
        at += call.gap or 0.0
        found.append(
            Call(
                call.prompt,
                call.answer,
                at=at,
                gap=call.gap,
                seconds=call.seconds,
                ttft=call.ttft,
                shared=call.shared,
                cached=call.cached,
                path=call.path,
                reason=call.reason,
            )
        )
        at += call.seconds or 0.0
    return tuple(found)
