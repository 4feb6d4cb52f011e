"""What a log tells is simulated; what it does not tell is said, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from antiphon_server.bench.simulate.traced import from_trace
from antiphon_server.bench.simulate.workload import CODING_AGENT
from antiphon_server.traces.trace import Call, Trace
from antiphon_server.traces.trace import Conversation as Told

CALLS = (
    Call(1000, 50, at=0.0, gap=None),
    Call(1200, 60, at=9.0, gap=4.0, shared=1050),
    Call(700, 70, at=30.0, gap=8.0, shared=300),
)


def trace(*calls: Call, notes: tuple[str, ...] = ()) -> Trace:
    return Trace("test", (Told("talk", calls),), block_size=16, notes=notes)


def test_a_trace_is_served_as_it_was_logged() -> None:
    found = from_trace(trace(*CALLS, notes=("1 line was left out",)), seed=1)
    turns = found.lanes[0].conversations[0].turns
    assert [(turn.gap, turn.prompt, turn.answer) for turn in turns] == [
        (0.0, 1000, 50),
        (4.0, 1200, 60),
        (8.0, 700, 70),
    ]
    assert [turn.keeps for turn in turns] == [None, None, 300]
    assert found.notes == ("1 line was left out",)


def test_what_a_log_does_not_tell_is_counted() -> None:
    untold = (
        replace(CALLS[0], at=None),
        replace(CALLS[1], gap=None),
        replace(CALLS[2], gap=None, shared=None),
    )
    found = from_trace(trace(*untold), copies=2, seed=1)
    assert found.notes == (
        "the log does not tell when 2 of 2 conversations began: they begin at random within 300 s (--window)",
        "4 of 4 gaps between turns are not in the log: they were drawn as modelled agents' are "
        "(coding-agent)",
        "the log does not tell what 2 of 4 later prompts repeat: they are taken to repeat all of the last "
        "prompt and its answer",
    )
    assert CODING_AGENT.window == 300


def test_a_window_that_was_asked_for_is_no_assumption() -> None:
    assert from_trace(trace(replace(CALLS[0], at=None)), window=5.0).notes == ()


def test_blocks_do_not_tell_whether_an_answer_repeats() -> None:
    blocks = (Call(64, 8, at=0.0, blocks=(1, 2, 3, 4)), Call(96, 8, gap=1.0, blocks=(1, 2, 3, 4, 5, 6)))
    assert from_trace(trace(*blocks)).notes == (
        "the log does not tell whether 1 of 1 later prompts repeat the last answer: they are taken to",
    )


def test_a_log_that_tells_of_no_repetition_is_refused() -> None:
    untold = [replace(call, shared=None) for call in CALLS]
    with pytest.raises(ValueError, match="--trace: the log does not tell of any of its 2 later prompts what"):
        from_trace(trace(*untold))
    assert from_trace(trace(untold[0])).lanes  # a single turn has nothing to repeat
