"""Where two arms' answers to the same turn part. Reuse must not change a token. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_server.bench.timing import Answer, Timed

_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Difference:
    """The first one of a conversation: what follows has other prompts. ``token``: from 0; None: the prompts
    differ already, though messages and answers before were equal. ``one``, ``other``: what each arm says from
    there on. ``drift``: largest difference of log-probabilities up to there; large: the KV was another one;
    tiny: the model could have said either, and the engine's arithmetic decided."""

    conversation: str
    turn: int
    arm: str
    other_arm: str
    token: int | None
    one: str
    other: str
    drift: float

    def __str__(self) -> str:
        where = f"{self.conversation}, turn {self.turn}: {self.arm} and {self.other_arm} differ"
        if self.token is None:
            return f"{where} in the prompt's tokens, though messages and answers before it are equal"
        return (
            f"{where} from token {self.token} of the answer on: {self.one!r} and {self.other!r} "
            f"(log-probabilities up to there differ by {self.drift:.2g} at most)"
        )


def first_difference(
    conversation: str, arm: str, turns: Sequence[Timed], other_arm: str, others: Sequence[Timed]
) -> tuple[Difference | None, int]:
    """And how many turns were compared. Turns that one arm lacks are not."""
    compared = 0
    for index, (one, other) in enumerate(zip(turns, others, strict=False)):
        compared += 1
        if one.prompt == other.prompt and one.answer.equals(other.answer):
            continue
        token = None
        if one.prompt == other.prompt:
            token = _first_token(one.answer, other.answer)
        one_text, other_text = _from(one.answer, token), _from(other.answer, token)
        drift = _drift(one.answer, other.answer, token or 0)
        return (
            Difference(conversation, index + 1, arm, other_arm, token, one_text, other_text, drift),
            compared,
        )
    return None, compared


def _first_token(one: Answer, other: Answer) -> int:
    """Of ids; of characters, where the server tells no ids or they are equal."""
    a, b = (one.ids, other.ids) if one.ids != other.ids else (_said(one), _said(other))
    same = (index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(same, min(len(a), len(b)))


def _from(answer: Answer, token: int | None) -> str:
    """Its text from about there on: tokens are not told apart in it."""
    said = _said(answer)
    share = (token or 0) / max(1, len(answer.ids)) if answer.ids else 0.0
    begin = int(share * len(said)) if answer.ids else token or 0
    return said[begin : begin + _SHOWN]


def _said(answer: Answer) -> str:
    return answer.text + (answer.tool or "") + answer.arguments


def _drift(one: Answer, other: Answer, token: int) -> float:
    pairs = zip(one.logprobs[: token + 1], other.logprobs[: token + 1], strict=False)
    return max((abs(a - b) for a, b in pairs), default=0.0)
