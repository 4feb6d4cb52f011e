"""What tells one surface from another: a description of each, read by the rest of this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from antiphon_server.router.plan.reasons import Reason

Body = dict[str, msgspec.Raw]
"""A request or reply, parsed one level deep: values stay raw JSON."""

Surface = Literal["chat", "completions", "responses", "messages"]

Alone = Callable[[Body], Reason | None]
"""Why a request cannot be handed over, if it cannot."""

TRUE = msgspec.Raw(b"true")
FALSE = msgspec.Raw(b"false")

ENGINES_OWN = ("kv_transfer_params", "ec_transfer_params")
"""Where an engine reads other engines' memory: nobody but the router may say, and nobody else may see."""

OURS = frozenset({"conversation_id", "request_id", *ENGINES_OWN})
"""Never forwarded: engines do not know the first, and nobody but the router may set the others."""

ANSWER_ONLY = frozenset(
    {
        "stream",
        "stream_options",
        "n",
        "best_of",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "logprob_token_ids",
        "thinking_token_budget",
        "return_tokens_as_token_ids",
        "return_token_offsets",
        "return_prompt_text",
        "return_token_ids",
        # The sampled token is thrown away; and a seed ends vLLM 0.32 on CPU when the prefill is chunked ("CPU
        # Generator does not use offset").
        "seed",
    }
)
"""What shapes the answer and not the prompt: no business of a prefill leg, whatever the surface."""


@dataclass(frozen=True, slots=True)
class Form:
    """One surface.

    ``path``: of the endpoint, on the router as on engines. ``limits``: fields that bound the answer's tokens,
    the ruling one first; ``limit``: what bounds it without any. ``answer_only``: what a prefill leg leaves
    out; ``answer_only_if``: what it leaves out when the value says so. ``prefill``: what it adds, such as
    the wish to see the prompt's ids. ``alone``: tests for what cannot be handed over; ``media``: one of parts
    that are not text, which engines that take only text refuse by themselves.

    Of streams: ``opening``: how events begin that say no more than that the request was taken, and ``role``,
    what such an event holds where only that tells it from others; ``ends``: how the last event begins.
    """

    surface: Surface
    path: str
    limits: tuple[str, ...]
    alone: tuple[Alone, ...]
    ends: tuple[bytes, ...]
    opening: tuple[bytes, ...] = ()
    role: bytes | None = None
    media: Alone | None = None
    limit: int | None = None
    answer_only: frozenset[str] = frozenset()
    answer_only_if: Mapping[str, Callable[[msgspec.Raw], bool]] = field(default_factory=dict)
    prefill: Mapping[str, msgspec.Raw] = field(default_factory=dict)


def value(body: Mapping[str, msgspec.Raw], name: str) -> object:
    """A field's value; None without it."""
    raw = body.get(name)
    return None if raw is None else msgspec.json.decode(raw)
