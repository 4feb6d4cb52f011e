from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import httpx
import httpx2
import pytest

import antiphon
from antiphon import ToolCall, Turn, TurnError
from antiphon.testing import FakeRouter, Recorded

ASK: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is there?"}]


def call(number: int, arguments: str = '{ "item":"é\\u00e9"}') -> dict[str, Any]:
    function = {"name": f"tool-{number}", "arguments": arguments}
    return {"id": f"c{number}", "type": "function", "function": function}


def asking(*numbers: int, **fields: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [call(number) for number in numbers],
        **fields,
    }


def result(number: int, text: str = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": text}


SAID = {"role": "assistant", "content": "Nothing."}


@pytest.fixture
def turn() -> Turn:
    return antiphon.conversation("c", parent="p").turn(ASK)


def test_history_is_what_was_added(turn: Turn) -> None:
    turn.add_reply(asking(1, reasoning="hm", zeta={"a": [None, 1.5]}))
    turn.add_tool_result("c1", "r")
    turn.add_reply(SAID)
    turn.add_user("And now?")
    assert turn.messages == [
        *ASK,
        asking(1, reasoning="hm", zeta={"a": [None, 1.5]}),
        result(1),
        SAID,
        {"role": "user", "content": "And now?"},
    ]


def test_turn_without_messages_begins_empty() -> None:
    turn = antiphon.conversation().turn()
    assert turn.messages == []
    assert turn.calls == ()


@pytest.mark.parametrize("content", [None, "", " "])
def test_content_is_neither_made_null_nor_text(turn: Turn, content: str | None) -> None:
    turn.add_reply({"role": "assistant", "content": content})
    assert turn.messages[-1] == {"role": "assistant", "content": content}


def test_calls_are_the_models_in_its_order(turn: Turn) -> None:
    turn.add_reply(asking(2, 1))
    assert turn.calls == (
        ToolCall("c2", "tool-2", '{ "item":"é\\u00e9"}'),
        ToolCall("c1", "tool-1", '{ "item":"é\\u00e9"}'),
    )
    assert turn.calls[0].parsed() == {"item": "éé"}


def test_calls_are_those_without_a_result(turn: Turn) -> None:
    turn.add_reply(asking(1, 2, 3))
    turn.add_tool_result("c2", "")
    assert [call.id for call in turn.calls] == ["c1", "c3"]


def test_custom_tools_and_parsed_arguments_are_calls_too(turn: Turn) -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "shell", "input": "ls é"}}
    parsed = {"id": "c2", "type": "function", "function": {"name": "f", "arguments": {"a": "é"}}}
    bare = {"function": {"name": "g"}}
    turn.add_reply({"role": "assistant", "tool_calls": [custom, parsed, bare]})
    assert turn.calls == (
        ToolCall("c1", "shell", "ls é"),
        ToolCall("c2", "f", '{"a": "é"}'),
        ToolCall("", "g", ""),
    )


def test_empty_arguments_are_an_empty_object() -> None:
    assert ToolCall("c1", "f", "").parsed() == {}


@pytest.mark.parametrize("arguments", ["{", "[1]", '"a"', "null", "1"])
def test_arguments_that_are_no_object_are_an_error_that_names_the_call(arguments: str) -> None:
    with pytest.raises(TurnError, match=r"arguments of call 'c1' \(f\) are no JSON"):
        ToolCall("c1", "f", arguments).parsed()


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_results_go_in_the_order_of_their_calls(turn: Turn, order: tuple[int, ...]) -> None:
    turn.add_reply(asking(1, 2, 3))
    for number in order:
        turn.add_tool_result(f"c{number}", f"r{number}")
    assert turn.messages[-3:] == [result(1, "r1"), result(2, "r2"), result(3, "r3")]


def test_results_may_come_from_several_threads(turn: Turn) -> None:
    numbers = range(64)
    turn.add_reply(asking(*numbers))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda call: turn.add_tool_result(call.id, call.id), reversed(turn.calls)))
    assert turn.messages[-64:] == [result(number, f"c{number}") for number in numbers]


def test_results_stand_before_what_was_added_meanwhile(turn: Turn) -> None:
    turn.add_reply(asking(1, 2))
    turn.add_tool_result("c2", "r")
    turn.add_user("Look at this.")
    turn.add_tool_result("c1", "r")
    assert turn.messages[-3:] == [result(1), result(2), {"role": "user", "content": "Look at this."}]


def test_missing_results_are_an_error_that_names_their_calls(turn: Turn) -> None:
    turn.add_reply(asking(1, 2, 3))
    turn.add_tool_result("c2", "r")
    with pytest.raises(TurnError, match=r"no result yet of call 'c1' \(tool-1\), call 'c3' \(tool-3\)"):
        _ = turn.messages
    with pytest.raises(TurnError, match="no result yet"):
        turn.add_reply(SAID)
    with pytest.raises(TurnError, match="no result yet"):
        turn.add(SAID)


def test_second_result_of_a_call_is_an_error(turn: Turn) -> None:
    turn.add_reply(asking(1, 2))
    turn.add_tool_result("c1", "r")
    with pytest.raises(TurnError, match=r"call 'c1' \(tool-1\) has its result already"):
        turn.add_tool_result("c1", "r")
    with pytest.raises(TurnError, match="has its result already"):
        turn.add(result(1))


def test_result_of_an_unknown_call_is_an_error_that_names_the_open_ones(turn: Turn) -> None:
    with pytest.raises(TurnError, match="no call 'c9' to answer; without a result yet: none"):
        turn.add_tool_result("c9", "r")
    turn.add_reply(asking(1))
    with pytest.raises(
        TurnError, match=r"no call 'c9' to answer; without a result yet: call 'c1' \(tool-1\)"
    ):
        turn.add_tool_result("c9", "r")
    with pytest.raises(TurnError, match="no call None to answer"):
        turn.add({"role": "tool", "content": "r"})


def test_result_of_an_earlier_replys_call_is_an_error(turn: Turn) -> None:
    turn.add_reply(asking(1))
    turn.add_tool_result("c1", "r")
    turn.add_reply(asking(2))
    with pytest.raises(TurnError, match="no call 'c1' to answer"):
        turn.add_tool_result("c1", "r")


def test_calls_that_share_an_id_take_one_result_each(turn: Turn) -> None:
    turn.add_reply(asking(1, 1))
    turn.add_tool_result("c1", "first")
    turn.add_tool_result("c1", "second")
    assert turn.messages[-2:] == [result(1, "first"), result(1, "second")]
    with pytest.raises(TurnError, match="has its result already"):
        turn.add_tool_result("c1", "third")


def test_reply_added_twice_is_an_error(turn: Turn) -> None:
    turn.add_reply(SAID)
    with pytest.raises(TurnError, match="nothing was added since the last reply"):
        turn.add_reply(SAID)
    assert turn.messages == [*ASK, SAID]
    turn.add_user("Again.")
    turn.add_reply(SAID)


def test_whatever_is_changed_afterwards_the_history_stays(turn: Turn) -> None:
    reply, user, told = asking(1), {"role": "user", "content": [{"type": "text", "text": "a"}]}, {"a": 1}
    turn.add(user)
    turn.add_reply(reply)
    turn.add_tool_result("c1", told)
    before = deepcopy(turn.messages)

    reply["tool_calls"][0]["function"]["arguments"] = "{}"
    user["content"] = ""
    told["a"] = 2
    handed = turn.messages
    handed[2]["content"][0]["text"] = "b"
    handed.clear()
    assert turn.messages == before


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("text", "text"),
        ("", ""),
        ([{"type": "text", "text": "a"}], [{"type": "text", "text": "a"}]),
        ({"b": "é", "a": [1, None]}, '{"b":"é","a":[1,null]}'),
        ([{"type": "bolt", "pieces": 3}], '[{"type":"bolt","pieces":3}]'),
        ([{"type": ["text"]}], '[{"type":["text"]}]'),
        ([{"type": "text", "text": "a"}, 1], '[{"type":"text","text":"a"},1]'),
        ([], "[]"),
        ((1, 2), "[1,2]"),
        (3.5, "3.5"),
        (True, "true"),
        (None, "null"),
    ],
)
def test_result_is_text_or_parts_or_dumped_once(turn: Turn, given: object, sent: object) -> None:
    turn.add_reply(asking(1))
    turn.add_tool_result("c1", given)
    assert turn.messages[-1] == {"role": "tool", "tool_call_id": "c1", "content": sent}


@pytest.mark.parametrize("given", [b"a", object(), {"a": float("nan")}, [{1}]])
def test_result_that_is_no_json_is_an_error_and_the_call_stays_open(turn: Turn, given: object) -> None:
    turn.add_reply(asking(1))
    with pytest.raises(TurnError, match=r"the result of call 'c1' \(tool-1\) is no JSON"):
        turn.add_tool_result("c1", given)
    assert [call.id for call in turn.calls] == ["c1"]


def test_stored_history_goes_on_where_it_stopped() -> None:
    half = [*ASK, asking(1), result(1), asking(1, 2), {**result(2), "name": "tool-2"}]
    turn = antiphon.conversation().turn(half)
    assert [call.id for call in turn.calls] == ["c1"]
    turn.add_tool_result("c1", "r")
    assert turn.messages == [*half[:-1], result(1), half[-1]]


def test_stored_history_may_end_with_the_assistants_greeting() -> None:
    turn = antiphon.conversation().turn([SAID])
    turn.add_reply(asking(1))
    assert [call.id for call in turn.calls] == ["c1"]


@pytest.mark.parametrize("message", ["text", None, {"content": "a"}, {"role": None}, 3])
def test_what_is_no_message_is_an_error(turn: Turn, message: object) -> None:
    with pytest.raises(TurnError, match="is no message: pass a dict with a role"):
        turn.add(message)


@pytest.mark.parametrize("content", [b"a", {1: "a"}, {"a"}, [object()]])
def test_message_that_json_cannot_hold_is_an_error_that_shows_it(turn: Turn, content: Any) -> None:
    with pytest.raises(TurnError, match="which no message can hold"):
        turn.add_user(content)


@pytest.mark.parametrize("as_message", [False, True])
def test_reply_may_be_whole_or_its_message(turn: Turn, as_message: bool) -> None:
    message = asking(1, reasoning_content="hm")
    turn.add_reply(message if as_message else {"choices": [{"index": 0, "message": message}]})
    turn.add_tool_result("c1", "r")
    assert turn.messages[-2] == message


def test_one_choice_of_several_counts(turn: Turn) -> None:
    choices = [{"index": place, "message": {"role": "assistant", "content": str(place)}} for place in (1, 0)]
    turn.add_reply({"choices": choices}, choice=1)
    assert turn.messages[-1]["content"] == "1"
    turn.add_user("Again.")
    for choice in choices:
        del choice["index"]
    turn.add_reply({"choices": choices}, choice=1)
    assert turn.messages[-1]["content"] == "0"
    turn.add_user("Again.")
    with pytest.raises(TurnError, match="no choice 2: it has 2, counted from 0"):
        turn.add_reply({"choices": choices}, choice=2)


@pytest.mark.parametrize(
    "reply",
    [
        None,
        "text",
        [SAID],
        ASK[0],
        {"content": "a"},
        {"choices": [{"index": 0}]},
        {"output": [SAID]},
        httpx.Response(200),
    ],
)
def test_what_is_no_reply_is_an_error_that_says_what_is(turn: Turn, reply: object) -> None:
    with pytest.raises(TurnError, match="is no reply of the assistant: pass a chat completion"):
        turn.add_reply(reply)
    assert turn.messages == ASK


def test_id_is_the_same_until_a_reply_is_added(turn: Turn) -> None:
    first = turn.id
    turn.add_user("One thing more.")
    assert turn.id == first
    turn.add_reply(asking(1))
    second = turn.id
    assert second != first
    turn.add_tool_result("c1", "r")
    assert turn.id == second
    with pytest.raises(TurnError):
        turn.add_reply("")
    assert turn.id == second


@pytest.mark.parametrize("copied", [deepcopy, lambda turn: pickle.loads(pickle.dumps(turn))])
def test_copy_made_amid_the_calls_goes_on_by_itself(turn: Turn, copied: Any) -> None:
    turn.add_reply(asking(1, 2))
    turn.add_tool_result("c2", "r")
    other: Turn = copied(turn)
    assert other.conversation == turn.conversation
    assert other.id == turn.id
    other.add_tool_result("c1", "other")
    other.add_reply(SAID)
    assert other.messages == [*ASK, asking(1, 2), result(1, "other"), result(2), SAID]
    assert [call.id for call in turn.calls] == ["c1"]
    with pytest.raises(TurnError, match="nothing was added since"):
        copied(other).add_reply(SAID)


def test_stamp_is_the_conversations_with_the_turns_id(turn: Turn) -> None:
    made = turn.stamp()
    assert made.body == {"conversation_id": "c"}
    assert made.headers == {"X-Session-ID": "c", "X-Parent-Session-ID": "p", "X-Turn-ID": turn.id}
    assert turn.stamp(wire="dynamo").body == {}
    assert turn.stamp(headers=["x-turn-id"], body=["session_id"]) == antiphon.Stamp()


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_loop_on_a_plain_http_client_is_one_conversation(
    antiphon_router: FakeRouter, turn: Turn, library: Any
) -> None:
    def answer(request: Recorded) -> dict[str, Any]:
        return SAID if len(request.body["messages"]) > len(ASK) else asking(1, 2, reasoning="é")

    def ask() -> Any:
        stamp = turn.stamp()
        body = {"model": "m", "messages": turn.messages, **stamp.body}
        return http.post(f"{antiphon_router.base_url}/chat/completions", json=body, headers=stamp.headers)

    antiphon_router.answer = answer
    antiphon_router.statuses.append(503)
    with library.Client(trust_env=False) as http:
        assert ask().status_code == 503
        turn.add_reply(ask().json())
        for call in reversed(turn.calls):
            turn.add_tool_result(call.id, call.parsed())
        turn.add_reply(ask().json())

    failed, first, second = antiphon_router.calls()
    assert {request.body["conversation_id"] for request in antiphon_router.calls()} == {"c"}
    assert {request.headers["x-session-id"] for request in antiphon_router.calls()} == {"c"}
    assert failed.headers["x-turn-id"] == first.headers["x-turn-id"] != second.headers["x-turn-id"]
    assert second.body["messages"] == [
        *ASK,
        asking(1, 2, reasoning="é"),
        result(1, '{"item":"éé"}'),
        result(2, '{"item":"éé"}'),
    ]
    assert turn.messages[-1] == SAID
