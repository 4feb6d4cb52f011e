"""How many tokens a server counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon_server.traces.number import count


@dataclass(frozen=True, slots=True)
class Usage:
    """``cached``: of the prompt, not computed. ``thought``: of the answer, not in its text."""

    prompt: int | None = None
    answer: int | None = None
    cached: int | None = None
    thought: int | None = None


def usage_in(value: Any) -> Usage:
    """By OpenAI's, Anthropic's and LangChain's names. Anthropic's prompt leaves out what was cached."""
    if not isinstance(value, Mapping):
        return Usage()

    def first(*names: str) -> int | None:
        return next((found for name in names if (found := count(_at(value, name))) is not None), None)

    prompt = first("prompt_tokens", "input_tokens")
    read, made = count(value.get("cache_read_input_tokens")), count(value.get("cache_creation_input_tokens"))
    if prompt is not None and "prompt_tokens" not in value and "input_tokens_details" not in value:
        prompt += (read or 0) + (made or 0)
    cached = first(
        "prompt_tokens_details.cached_tokens",
        "input_tokens_details.cached_tokens",
        "input_token_details.cache_read",
        "cache_read_input_tokens",
    )
    thought = first(
        "completion_tokens_details.reasoning_tokens",
        "output_tokens_details.reasoning_tokens",
        "output_token_details.reasoning",
    )
    return Usage(prompt, first("completion_tokens", "output_tokens"), cached, thought)


def _at(value: Mapping[str, Any], name: str) -> Any:
    within, _, rest = name.partition(".")
    found = value.get(within)
    return found.get(rest) if rest and isinstance(found, Mapping) else None if rest else found
