from __future__ import annotations

from typing import Any

from antiphon_server.traces.chain import chained
from antiphon_server.traces.pool import Pool
from antiphon_server.traces.trace import Call

POOL = Pool()


def call(*texts: str, model: str = "m", reply: str | None = None) -> Call:
    """Of a history that begins with a system prompt; then a person and the assistant take turns."""
    said: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    said += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    answer = POOL.one({"role": "assistant", "content": reply}) if reply else None
    return Call(1, 1, model=model, history=POOL.all(said), reply=answer)


def chains(*calls: Call) -> list[list[int]]:
    return [[calls.index(each) for each in chain] for chain in chained(calls)]


def test_history_that_goes_on() -> None:
    assert chains(
        call("a"), call("b"), call("a", "A", "c"), call("b", "B", "d"), call("a", "A", "c", "C", "e")
    ) == [
        [0, 2, 4],
        [1, 3],
    ]


def test_system_prompt_in_common_is_not_enough() -> None:
    assert chains(call("a"), call("b"), call("c")) == [[0], [1], [2]]


def test_other_model_is_another_conversation() -> None:
    assert chains(call("a"), call("a", "A", "b", model="other")) == [[0], [1]]


def test_history_that_was_cut_shares_an_answer() -> None:
    long = call("a", "A", "b", "B", "c")
    assert chains(call("a"), long, call("a", "A", "x")) == [[0, 1, 2]]


def test_history_that_was_replaced_cannot_be_told() -> None:
    assert chains(call("a"), call("a", "A", "b"), call("summary"), call("summary", "S", "c")) == [
        [0, 1],
        [2, 3],
    ]


def test_equal_beginnings_are_told_apart_by_their_answers() -> None:
    first, second = call("a", reply="A"), call("a", reply="Z")
    assert chains(first, second, call("a", "A", "b"), call("a", "Z", "c")) == [[0, 2], [1, 3]]


def test_same_first_request_again_is_a_new_conversation() -> None:
    assert chains(call("a", reply="1"), call("a", reply="2")) == [[0], [1]]


def test_later_request_again_is_the_same_conversation() -> None:
    again = call("a", "A", "b", reply="2")
    assert chains(call("a"), call("a", "A", "b", reply="1"), again) == [[0, 1, 2]]


def test_call_without_history_is_alone() -> None:
    assert chains(Call(1, 1), call("a"), Call(2, 1)) == [[0], [1], [2]]
