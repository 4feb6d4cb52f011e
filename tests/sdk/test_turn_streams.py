from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest

import antiphon
from antiphon import ToolCall, Turn, TurnError

ASK: Any = [{"role": "user", "content": "What is there?"}]

Json = dict[str, Any]


def piece(delta: Json | None, finish: str | None = None, index: int = 0) -> Json:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def called(index: int, arguments: str | None = None, **fields: Any) -> Json:
    function = {"name": fields.pop("name", None), "arguments": arguments}
    return {"index": index, "function": function, **fields}


OPENING = piece({"role": "assistant", "content": ""})
USAGE: Json = {"choices": [], "usage": {"prompt_tokens": 1}}
HELLO = [OPENING, piece({"content": "Hel"}), piece({"content": "lo"}), piece({}, "stop"), USAGE]
SAID = {"role": "assistant", "content": "Hello"}


class Broken:
    """A stream that breaks after some chunks, sync and async."""

    def __init__(self, chunks: list[Json]) -> None:
        self.chunks = chunks

    def __iter__(self) -> Iterator[Json]:
        yield from self.chunks
        raise ConnectionError("gone")

    async def __aiter__(self) -> AsyncIterator[Json]:
        for chunk in self.chunks:
            yield chunk
        raise ConnectionError("gone")


async def as_async(chunks: list[Json]) -> AsyncIterator[Json]:
    for chunk in chunks:
        yield chunk


@pytest.fixture
def turn() -> Turn:
    return antiphon.conversation().turn(ASK)


def read(turn: Turn, *deltas: Json) -> Json:
    list(turn.read([*map(piece, deltas), piece({}, "stop")]))
    added: Json = turn._entries[-1].message
    return added


def test_chunks_are_handed_on_untouched(turn: Turn) -> None:
    handed = list(turn.read(HELLO))
    assert all(chunk is original for chunk, original in zip(handed, HELLO, strict=True))
    assert turn.messages == [*ASK, SAID]


async def test_async_chunks_are_handed_on_untouched(turn: Turn) -> None:
    handed = [chunk async for chunk in turn.aread(as_async(HELLO))]
    assert all(chunk is original for chunk, original in zip(handed, HELLO, strict=True))
    assert turn.messages == [*ASK, SAID]


def test_id_is_another_one_after_the_stream(turn: Turn) -> None:
    before = turn.id
    for chunk in turn.read(HELLO):
        assert (turn.id == before) == (chunk in HELLO[:3])
    assert turn.id != before


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "refusal", "musings"])
def test_text_of_any_name_is_put_together(turn: Turn, name: str) -> None:
    added = read(turn, {"role": "assistant", "content": None}, {name: "é", "content": None}, {name: " \n"})
    assert added == {"role": "assistant", "content": None, name: "é \n"}


def test_parallel_calls_are_put_together_by_their_index(turn: Turn) -> None:
    read(
        turn,
        {"role": "assistant", "content": ""},
        {"tool_calls": [called(0, "", id="c1", type="function", name="stock")]},
        {"tool_calls": [called(0, '{ "a'), called(0, '":')]},
        {"tool_calls": [called(1, "{}", id="c2", type="function", name="pri")]},
        {"tool_calls": [called(0, "1}", id=""), called(1, None, id="c2", name="ce")]},
    )
    assert turn.calls == (ToolCall("c1", "stock", '{ "a":1}'), ToolCall("c2", "price", "{}"))
    turn.add_tool_result("c1", "r")
    turn.add_tool_result("c2", "r")
    assert turn.messages[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "stock", "arguments": '{ "a":1}'}},
            {"id": "c2", "type": "function", "function": {"name": "price", "arguments": "{}"}},
        ],
    }


def test_calls_without_an_index_stand_alone(turn: Turn) -> None:
    read(
        turn, {"tool_calls": [{"id": "c1", "function": {"name": "f"}}, {"id": "c2", "custom": {"name": "g"}}]}
    )
    assert turn.calls == (ToolCall("c1", "f", ""), ToolCall("c2", "g", ""))


def test_calls_that_share_an_index_are_told_apart_by_name_and_id(turn: Turn) -> None:
    read(
        turn,
        {"tool_calls": [called(0, "{", id="c1", name="f")]},
        {"tool_calls": [called(0, "}", id="again")]},
        {"tool_calls": [called(0, "{}", id="c2", name="g"), called(1, "{}", id="c3", name="h")]},
    )
    assert turn.calls == (ToolCall("again", "f", "{}"), ToolCall("c2", "g", "{}"), ToolCall("c3", "h", "{}"))


def test_call_of_a_stream_has_the_type_and_the_arguments_that_servers_insist_on(turn: Turn) -> None:
    added = read(turn, {"tool_calls": [called(0, None, id="c1", type=None, name="f")]})
    function = {"name": "f", "arguments": ""}
    assert added["tool_calls"] == [{"id": "c1", "type": "function", "function": function}]


def test_fields_that_nobody_knows_are_put_together_by_their_kind(turn: Turn) -> None:
    added = read(
        turn,
        {
            "details": [{"index": 0, "type": "a", "text": "x"}],
            "score": 1,
            "tags": ["a"],
            "note": {"text": "p"},
        },
        {
            "details": [{"index": 0, "type": "a", "text": "y"}],
            "score": 2,
            "tags": ["b"],
            "note": {"text": "q"},
        },
    )
    assert added == {
        "role": "assistant",
        "content": None,
        "details": [{"index": 0, "type": "a", "text": "xy"}],
        "score": 2,
        "tags": ["a", "b"],
        "note": {"text": "pq"},
    }


def test_role_may_come_late_or_never(turn: Turn) -> None:
    assert read(turn, {"role": "", "content": "a"}, {"role": None})["role"] == "assistant"


@pytest.mark.parametrize("empty", [[], None])
def test_stream_without_calls_has_none(turn: Turn, empty: Any) -> None:
    assert "tool_calls" not in read(turn, {"content": "a", "tool_calls": empty})


def test_message_ends_at_its_finish_reason(turn: Turn) -> None:
    chunks = [OPENING, piece({"content": "a"}, "stop"), piece({"content": "b"}, "stop"), piece(None)]
    list(turn.read(chunks))
    assert turn.messages[-1]["content"] == "a"


def test_one_choice_of_a_stream_counts(turn: Turn) -> None:
    chunks = [piece({"content": "a"}, "stop"), piece({"content": "b"}, index=1), piece(None, "stop", index=1)]
    list(turn.read(chunks, choice=1))
    assert turn.messages[-1]["content"] == "b"


def test_stream_left_at_its_finish_reason_is_added(turn: Turn) -> None:
    for chunk in turn.read(HELLO):
        if chunk["choices"][0]["finish_reason"]:
            break
    assert turn.messages == [*ASK, SAID]


async def test_async_stream_left_at_its_finish_reason_is_added(turn: Turn) -> None:
    reading = turn.aread(as_async(HELLO))
    async for chunk in reading:
        if chunk["choices"][0]["finish_reason"]:
            break
    assert turn.messages == [*ASK, SAID]
    await reading.aclose()
    assert turn.messages == [*ASK, SAID]


def test_stream_left_early_adds_nothing(turn: Turn) -> None:
    before = turn.id
    for _ in turn.read(HELLO):
        break
    assert (turn.messages, turn.id) == (ASK, before)
    list(turn.read(HELLO))
    assert turn.messages == [*ASK, SAID]


@pytest.mark.parametrize("chunks", [[], HELLO[:2], HELLO[:4], HELLO])
def test_stream_that_breaks_adds_nothing_and_may_be_read_again(turn: Turn, chunks: list[Json]) -> None:
    before = turn.id
    with pytest.raises(ConnectionError):
        list(turn.read(Broken(chunks)))
    assert (turn.messages, turn.id) == (ASK, before)
    list(turn.read(HELLO))
    assert turn.messages == [*ASK, SAID]


async def test_async_stream_that_breaks_adds_nothing_and_may_be_read_again(turn: Turn) -> None:
    before = turn.id
    with pytest.raises(ConnectionError):
        _ = [chunk async for chunk in turn.aread(Broken(HELLO))]
    assert (turn.messages, turn.id) == (ASK, before)
    _ = [chunk async for chunk in turn.aread(as_async(HELLO))]
    assert turn.messages == [*ASK, SAID]


def test_stream_that_breaks_after_its_calls_were_answered_stays(turn: Turn) -> None:
    chunks = [piece({"tool_calls": [called(0, "", id="c1", name="f")]}, "tool_calls")]
    with suppress(ConnectionError):
        for _ in turn.read(Broken(chunks)):
            turn.add_tool_result("c1", "r")
    assert [message["role"] for message in turn.messages] == ["user", "assistant", "tool"]


def test_stream_that_breaks_after_the_next_question_stays(turn: Turn) -> None:
    with suppress(ConnectionError):
        for _ in turn.read(Broken([piece({"content": "a"}, "stop")])):
            turn.add_user("And?")
    assert [message["role"] for message in turn.messages] == ["user", "assistant", "user"]


@pytest.mark.parametrize("chunks", [[], HELLO[:3], [USAGE], [{"error": {"message": "no"}}]])
def test_stream_without_a_finish_reason_is_an_error(turn: Turn, chunks: list[Json]) -> None:
    with pytest.raises(TurnError, match="ended without a finish_reason, so nothing was added"):
        list(turn.read(chunks))
    assert turn.messages == ASK


def test_stream_is_not_read_where_its_reply_could_not_be_added(turn: Turn) -> None:
    list(turn.read(HELLO))
    unread = iter(HELLO)
    with pytest.raises(TurnError, match="nothing was added since the last reply"):
        list(turn.read(unread))
    assert next(unread) is OPENING


def test_two_streams_at_once_are_an_error(turn: Turn) -> None:
    slow = turn.read(HELLO)
    next(slow)
    list(turn.read(HELLO))
    with pytest.raises(TurnError, match="nothing was added since the last reply"):
        list(slow)
    assert turn.messages == [*ASK, SAID]
