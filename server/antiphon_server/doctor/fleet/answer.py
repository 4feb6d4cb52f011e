"""Answers of engines, and how far two of them are apart. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

TOLERANCE = 0.01
"""Of log-probabilities, where engines compute in float32: exact answers differ by less than 0.0001 there."""
ROUGH_TOLERANCE = 0.1
"""Where they compute in 16 bits or fewer."""
LARGEST_TOLERANCE = 0.5
"""KV of another prompt moves log-probabilities by about 1."""


TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Form = TypeVar("Form")


@dataclass(frozen=True, slots=True)
class Answer:
    """``tokens``: as the engine names them. ``logprobs``: one for each, where asked for. ``likely``: of the
    likeliest tokens at each place, by name. ``ids``: token ids, empty where they are not given."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    likely: tuple[Mapping[str, float], ...]
    text: str = ""
    ids: tuple[int, ...] = ()


class MalformedError(Exception):
    """An answer that is no JSON, or of another form than it should be."""


class _Said(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float] | None]


class _Choice(msgspec.Struct):
    logprobs: _Said
    text: str = ""
    token_ids: list[TokenId] | None = None


class _Completion(msgspec.Struct):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]


class _Likely(msgspec.Struct):
    token: str
    logprob: float


class _Place(_Likely):
    top_logprobs: list[_Likely]


class _Places(msgspec.Struct):
    content: list[_Place] | None = None


class _Message(msgspec.Struct):
    content: str | None = None


class _ChatChoice(msgspec.Struct):
    message: _Message
    logprobs: _Places | None = None


class _Chat(msgspec.Struct):
    choices: Annotated[list[_ChatChoice], msgspec.Meta(min_length=1)]


def read(raw: bytes, form: type[Form]) -> Form:
    """JSON of that form, and nothing else: no NaN, no halves of characters, no nesting without end.

    Raises:
        MalformedError: it is not.
    """
    try:
        return msgspec.json.decode(raw, type=form)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise MalformedError(str(error)) from error


def read_completion(raw: bytes) -> Answer:
    """Of ``/v1/completions``.

    Raises:
        MalformedError: it is something else.
    """
    choice = read(raw, _Completion).choices[0]
    said = choice.logprobs
    if not len(said.tokens) == len(said.token_logprobs) == len(said.top_logprobs):
        raise MalformedError("its log-probabilities are not one for each token")
    return Answer(
        tuple(said.tokens),
        tuple(said.token_logprobs),
        tuple(likely or {} for likely in said.top_logprobs),
        choice.text,
        tuple(choice.token_ids or ()),
    )


def read_chat(raw: bytes) -> Answer:
    """Of ``/v1/chat/completions``.

    Raises:
        MalformedError: it is something else.
    """
    choice = read(raw, _Chat).choices[0]
    places = (choice.logprobs and choice.logprobs.content) or ()
    return Answer(
        tuple(place.token for place in places),
        tuple(place.logprob for place in places),
        tuple({one.token: one.logprob for one in place.top_logprobs} for place in places),
        choice.message.content or "",
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
