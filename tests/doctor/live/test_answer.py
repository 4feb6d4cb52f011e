"""How far two answers are apart, and what rounding may be."""

from __future__ import annotations

import math

from antiphon_server.doctor.fleet.answer import (
    LARGEST_TOLERANCE,
    ROUGH_TOLERANCE,
    TOLERANCE,
    Answer,
    gap,
    tolerance,
)


def answer(*said: tuple[str, float, dict[str, float]]) -> Answer:
    return Answer(*(tuple(part) for part in zip(*said, strict=True)))  # type: ignore[arg-type]


def test_same_tokens_are_as_far_apart_as_their_log_probabilities() -> None:
    left = answer(("a", -0.5, {"a": -0.5}), ("b", -1.0, {"b": -1.0}))
    right = answer(("a", -0.5, {"a": -0.5}), ("b", -1.25, {"b": -1.25}))
    assert gap(left, left) == 0
    assert gap(left, right) == 0.25


def test_tokens_that_differ_by_rounding_are_near() -> None:
    left = answer(("a", -0.70, {"a": -0.70, "b": -0.71}), ("x", -0.1, {"x": -0.1}))
    right = answer(("b", -0.69, {"b": -0.69, "a": -0.72}), ("y", -9.0, {"y": -9.0}))
    assert math.isclose(gap(left, right), 0.03)  # what comes after has another past


def test_tokens_that_the_other_would_hardly_say_are_far_apart() -> None:
    left = answer(("a", -0.1, {"a": -0.1, "b": -3.1}))
    right = answer(("b", -0.1, {"b": -0.1, "a": -3.1}))
    assert math.isclose(gap(left, right), 3.0)
    assert gap(left, answer(("c", -0.1, {"c": -0.1}))) == math.inf


def test_answers_of_other_lengths_are_not_the_same() -> None:
    one = ("a", -0.1, {"a": -0.1})
    assert gap(answer(one), answer(one, one)) == math.inf


def test_tolerance_follows_precision_and_noise_within_limits() -> None:
    assert tolerance("float32", 0.0) == TOLERANCE
    assert tolerance("bfloat16", 0.0) == ROUGH_TOLERANCE
    assert tolerance(None, 0.0) == ROUGH_TOLERANCE
    assert math.isclose(tolerance("bfloat16", 0.1), 0.3)
    assert tolerance("bfloat16", math.inf) == LARGEST_TOLERANCE
