"""Answers of engines, and how far two of them are apart. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TOLERANCE = 0.01
"""Of log-probabilities, where engines compute in float32: exact answers differ by less than 0.0001 there."""
ROUGH_TOLERANCE = 0.1
"""Where they compute in 16 bits or fewer."""
LARGEST_TOLERANCE = 0.5
"""KV of another prompt moves log-probabilities by about 1."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``tokens``: as the engine names them. ``logprobs``: one for each, where asked for. ``likely``: of the
    likeliest tokens at each place, by name. ``ids``: token ids, empty where they are not given."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    likely: tuple[Mapping[str, float], ...]
    text: str = ""
    ids: tuple[int, ...] = ()


def read_completion(reply: Mapping[str, Any]) -> Answer:
    """Of ``/v1/completions``."""
    choice = reply["choices"][0]
    said = choice["logprobs"]
    return Answer(
        tuple(said["tokens"]),
        tuple(said["token_logprobs"]),
        tuple(said["top_logprobs"]),
        choice["text"],
        tuple(choice.get("token_ids") or ()),
    )


def read_chat(reply: Mapping[str, Any]) -> Answer:
    """Of ``/v1/chat/completions``."""
    choice = reply["choices"][0]
    places: Sequence[Mapping[str, Any]] = (choice["logprobs"] or {}).get("content") or ()
    return Answer(
        tuple(place["token"] for place in places),
        tuple(place["logprob"] for place in places),
        tuple({one["token"]: one["logprob"] for one in place["top_logprobs"]} for place in places),
        choice["message"]["content"] or "",
    )


def gap(left: Answer, right: Answer) -> float:
    """Largest difference of log-probabilities, as far as both said the same, and where they part, how far
    either is from saying what the other said: small where rounding decides between two tokens. ``inf`` where
    one would hardly say the other's."""
    largest = 0.0
    for place, (one, other) in enumerate(zip(left.tokens, right.tokens, strict=False)):
        if one != other:
            there = (_short_of(left, place, other), _short_of(right, place, one))
            return max(largest, *there)
        largest = max(largest, abs(left.logprobs[place] - right.logprobs[place]))
    return largest if len(left.tokens) == len(right.tokens) else float("inf")


def tolerance(dtype: str | None, noise: float) -> float:
    """What exact answers may differ by. ``noise``: of two answers that both were computed in full."""
    least = TOLERANCE if dtype == "float32" else ROUGH_TOLERANCE
    return min(max(least, 3 * noise), LARGEST_TOLERANCE)


def _short_of(answer: Answer, place: int, token: str) -> float:
    likely = answer.likely[place] if place < len(answer.likely) else {}
    return answer.logprobs[place] - likely.get(token, float("-inf"))
