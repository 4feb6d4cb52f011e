"""Times of a log that are faulty, missing or the wrong way round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from antiphon_server.traces.clock import order, plausible
from antiphon_server.traces.trace import Trace

Lines = Callable[..., Trace]
NOON = 1772366400


def call(turn: int, at: Any, name: str | None = "c") -> dict[str, Any]:
    """Turn from 0 of a conversation that begins with its name."""
    messages = [{"role": "user", "content": f"{name} begins"}]
    for before in range(turn):
        messages += [
            {"role": "assistant", "content": f"answer {before}"},
            {"role": "user", "content": f"question {before}"},
        ]
    return {
        "time": at,
        "seconds": 2.5,
        "conversation_id": None if name is None or name.startswith("loose") else name,
        "request": {"model": "m", "messages": messages},
        "response": {
            "choices": [{"message": {"role": "assistant", "content": f"answer {turn}"}}],
            "usage": {"prompt_tokens": 1000 + 100 * turn, "completion_tokens": 9},
        },
    }


def gaps(trace: Trace) -> list[list[float | None]]:
    return [[each.gap for each in conversation.calls] for conversation in trace.conversations]


def test_times_that_cannot_be_read_are_told(lines: Lines) -> None:
    trace = lines(call(0, "noon"), call(1, "later"), call(2, NOON))
    assert trace.notes == ("2 calls have a time that cannot be read, first 'noon'",)
    assert "1 calls have a time that cannot be read, first 'noon'" in lines(call(0, "noon")).notes


def test_missing_times_are_told_where_others_have_one(lines: Lines) -> None:
    assert lines(call(0, None), call(1, NOON), call(2, NOON + 9)).notes == ("1 calls have no time",)
    assert not lines(call(0, None)).notes


def test_unreadable_times_of_turn_logs_and_spans_are_told(lines: Lines) -> None:
    turn = {
        "event": "turn.served",
        "level": "info",
        "path": "cold",
        "reason": "first",
        "tokens": 9,
        "answer": 1,
    }
    span = {
        "name": "chat m",
        "start_time": "noon",
        "attributes": {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 9},
        "trace_id": "t",
    }
    for document in ({**turn, "time": "noon"}, span):
        assert "1 calls have a time that cannot be read, first 'noon'" in lines(document).notes


@pytest.mark.parametrize("wrong", [0, 3, 1e300])
def test_time_far_from_the_others_counts_as_none(lines: Lines, wrong: float) -> None:
    trace = lines(call(0, NOON), call(1, NOON + 10), call(2, wrong), call(3, NOON + 30), call(4, NOON + 40))
    (conversation,) = trace.conversations
    assert [each.at for each in conversation.calls] == [0.0, 10.0, None, 30.0, 40.0]
    assert gaps(trace) == [[None, 7.5, None, None, 7.5]]
    said = f"1 calls have a time more than a year from most others' and count as without, first {wrong!r}"
    assert trace.notes == (said,)


def test_times_from_something_else_than_1970_are_in_seconds_and_the_note_says_so(lines: Lines) -> None:
    trace = lines(call(0, 0), call(1, 30))
    assert gaps(trace) == [[None, 27.5]]
    assert trace.notes == ("times do not count from 1970: they are taken to be in seconds",)


@pytest.mark.parametrize(("name", "noted"), [("duration", True), ("duration_ms", False)])
def test_durations_longer_than_the_time_to_the_next_call_are_told(
    lines: Lines, name: str, noted: bool
) -> None:
    log = [{**call(turn, NOON + 30 * turn), "seconds": None, name: 2500} for turn in range(4)]
    notes = lines(*log).notes
    assert any(note.startswith("3 of 3 answers take longer than it is to the") for note in notes) is noted
    assert len(notes) == noted


def test_few_long_durations_are_no_question_of_units(lines: Lines) -> None:
    log = [{**call(turn, NOON + 30 * turn), "seconds": 40 if turn < 2 else 2} for turn in range(5)]
    assert not lines(*log).notes


@pytest.mark.parametrize("without", range(4))
def test_newest_first_with_a_time_missing(lines: Lines, without: int) -> None:
    log = [call(turn, None if turn == without else NOON + 10 * turn) for turn in range(4)]
    (conversation,) = lines(*reversed(log)).conversations
    assert [each.prompt for each in conversation.calls] == [1000, 1100, 1200, 1300]


def test_newest_first_without_names_and_with_a_time_missing_is_put_together(lines: Lines) -> None:
    log = [
        call(turn, None if (turn, name) == (1, "loose a") else NOON + 10 * turn + i, name)
        for turn in range(3)
        for i, name in enumerate(("loose a", "loose b"))
    ]
    trace = lines(*reversed(log))
    assert [len(conversation.calls) for conversation in trace.conversations] == [3, 3]


def test_order() -> None:
    assert order([None, None]) == [0, 1]
    assert order([5.0, None, 3.0, 9.0]) == [2, 0, 1, 3]
    assert order([9.0, None, 5.0, 5.0, None]) == [4, 3, 2, 1, 0]
    assert order([]) == []


def test_plausible() -> None:
    assert plausible([]) == []
    assert plausible([None, 0.0, 30.0]) == [None, 0.0, 30.0]
    assert plausible([0.0, 1.7e9, 1.7e9 + 1]) == [None, 1.7e9, 1.7e9 + 1]
