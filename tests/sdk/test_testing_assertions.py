"""What the assertions let pass, and what they say where they do not."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from openai import OpenAI

import antiphon
from antiphon.testing import (
    FakeRouter,
    Outcome,
    Recorded,
    assert_distinct_turns,
    assert_ended,
    assert_history_kept,
    assert_same_conversation,
    mocked,
    tool_call,
)
from antiphon.testing._sent import recorded

USER: Any = {"role": "user", "content": "How many hinges are there?"}
ANSWER: Any = {"role": "assistant", "content": "12"}
MORE: Any = {"role": "user", "content": "And screws?"}
ASKING: Any = tool_call("stock", item="hinges")
RESULT: Any = {"role": "tool", "tool_call_id": ASKING["tool_calls"][0]["id"], "content": "12"}


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    with FakeRouter() as router:
        yield router


def call(
    messages: Any, answer: Any = None, *, of: str | None = "c", turn: str | None = None, **rest: Any
) -> Recorded:
    """A chat's; a turn id only where one is given."""
    body = {"messages": messages, **rest} | ({"conversation_id": of} if of else {})
    headers = {"x-turn-id": turn} if turn else {}
    return Recorded("POST", "/v1/chat/completions", headers, body, 200, [answer] if answer else None)


def at(path: str, body: Any, answer: Any = None) -> Recorded:
    return Recorded("POST", f"/v1/{path}", {"session-id": "c"}, body, 200, answer)


def refused(assertion: Callable[..., Any], *args: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        assertion(*args, **options)
    return str(caught.value)


# --- one conversation


def test_calls_of_one_conversation_pass_and_give_its_id() -> None:
    others = [Recorded("GET", "/v1/models"), Recorded("DELETE", "/v1/conversations/d")]
    assert assert_same_conversation([call([]), at("responses", {}), *others]) == "c"


def test_call_of_another_conversation_is_named() -> None:
    message = refused(assert_same_conversation, [call([]), call([]), call([], of="d")])
    assert message == (
        "calls[2] (POST /v1/chat/completions) belongs to conversation 'd', and calls[0] to 'c': "
        "open one conversation around both, or look at the calls of each by itself, as "
        "FakeRouter.conversations() gives them, where they are of two agents"
    )


def test_call_of_no_conversation_is_named_with_the_remedy() -> None:
    message = refused(assert_same_conversation, [call([]), call([], of=None)])
    assert message.startswith("calls[1] (POST /v1/chat/completions) names no conversation")
    assert "antiphon.conversation()" in message


@pytest.mark.parametrize("assertion", [assert_same_conversation, assert_distinct_turns, assert_history_kept])
def test_nothing_at_all_does_not_pass(assertion: Callable[..., Any]) -> None:
    message = refused(assertion, [Recorded("GET", "/v1/models")])
    assert message == "there is no model call among the 1 requests given"


def test_what_is_no_request_is_refused() -> None:
    with pytest.raises(TypeError, match=r"'chat' is no request: pass what"):
        assert_same_conversation(["chat"])


# --- forms of requests


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_requests_and_responses_of_http_libraries_are_taken(library: str) -> None:
    module = pytest.importorskip(library)
    url = "http://router/v1/chat/completions"
    kept = module.Request("POST", url, json={"messages": [USER, ANSWER, MORE]}, headers={"X-Session-ID": "c"})
    first = module.Request("POST", url, json={"messages": [USER], "conversation_id": "c"})
    reply = {"choices": [{"index": 0, "message": ANSWER}]}
    response = module.Response(200, json=reply, request=first)
    assert assert_same_conversation([first, kept]) == "c"
    assert_history_kept([response, kept])
    other = module.Response(200, json={"choices": [{"message": {**ANSWER, "content": "13"}}]}, request=first)
    assert "calls[1].messages[1].content differs" in refused(assert_history_kept, [other, kept])


def test_pairs_of_headers_and_body_are_taken() -> None:
    body = {"messages": [USER]}
    assert assert_same_conversation([({"X-Session-ID": "c"}, body), ([("x-session-id", "c")], None)]) == "c"
    assert assert_same_conversation([({}, b'{"session_id": "c"}'), ({}, '{"session_id": "c"}')]) == "c"


def test_calls_of_respx_are_taken_with_their_replies() -> None:
    replies = [
        httpx.Response(200, json={"choices": [{"message": ANSWER}]}),
        httpx.Response(500, json={"error": {}}),
        httpx.Response(
            200, text='data: {"choices": [{"index": 0, "delta": {"content": "9"}}]}\n\ndata: [DONE]\n'
        ),
    ]
    histories = [
        [USER],
        [USER, ANSWER, MORE],
        [USER, ANSWER, MORE],
        [USER, ANSWER, MORE, {**ANSWER, "content": "8"}],
    ]
    with mocked() as respx_mock:
        route = respx_mock.post("http://router/v1/chat/completions").mock(side_effect=[*replies, replies[0]])
        for history in histories:
            httpx.post("http://router/v1/chat/completions", json={"messages": history})
        assert_history_kept(route.calls[:3])
        message = refused(assert_history_kept, route.calls)
    assert "calls[3].messages[3].content differs from character 0 on: '9' became '8'" in message
    assert "(the answer to calls[2])" in message


def test_bodies_that_are_still_to_be_read_say_nothing() -> None:
    url = "http://router/v1/chat/completions"

    def body() -> Iterator[bytes]:
        yield b""

    request = httpx.Request("POST", url, content=body(), headers={"X-Session-ID": "c"})
    response = httpx.Response(
        200, content=body(), request=httpx.Request("POST", url, json={"session_id": "c"})
    )
    assert assert_same_conversation([request, response]) == "c"


def text(*events: Any) -> str:
    return "".join(f"event: e\ndata: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("path", "body", "reply", "goes_on"),
    [
        ("completions", {"prompt": "a"}, {"choices": [{"text": "b"}]}, {"prompt": "abc"}),
        (
            "completions",
            {"prompt": "a"},
            text({"choices": [{"index": 0, "text": "b"}]}, {"choices": [{"index": 1, "text": "x"}]}),
            {"prompt": "abc"},
        ),
        (
            "messages",
            {"messages": [USER]},
            {"content": [{"type": "text", "text": "b"}]},
            {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}, MORE]},
        ),
        (
            "messages",
            {"messages": [USER]},
            text({"type": "message_start"}),
            {"messages": [USER, ANSWER, MORE]},
        ),
        (
            "responses",
            {"input": "a"},
            {"output": [{"type": "message", "id": "m"}]},
            {"input": [{"role": "user", "content": "a"}, {"type": "message", "id": "m"}, MORE]},
        ),
        (
            "responses",
            {"input": "a"},
            text({"type": "response.completed", "response": {"output": [{"type": "function_call"}]}}),
            {"input": [{"role": "user", "content": "a"}, {"type": "function_call"}]},
        ),
    ],
)
def test_histories_of_all_surfaces_are_followed(path: str, body: Any, reply: Any, goes_on: Any) -> None:
    request = httpx.Request("POST", f"http://router/v1/{path}", json=body)
    content = {"text": reply} if isinstance(reply, str) else {"json": reply}
    first = httpx.Response(200, request=request, **content)
    then = httpx.Request("POST", f"http://router/v1/{path}", json=goes_on)
    assert_history_kept([first, then])
    lost = httpx.Request("POST", f"http://router/v1/{path}", json=body)
    assert "calls[1]" in refused(assert_history_kept, [first, lost])


def test_replies_to_other_requests_are_of_no_interest() -> None:
    request = httpx.Request("POST", "http://router/v1/embeddings", json={})
    reply = httpx.Response(200, json={}, request=request)
    assert assert_same_conversation([reply, call([])]) == "c"


# --- turns


def test_turns_with_ids_of_their_own_pass() -> None:
    assert_distinct_turns([call([], turn="1"), call([], turn="2")])


def test_call_without_a_turn_id_is_named() -> None:
    message = refused(assert_distinct_turns, [call([], turn="1"), call([])])
    assert message.startswith("calls[1] (POST /v1/chat/completions) has no X-Turn-ID")


def test_turn_id_used_twice_is_named() -> None:
    message = refused(assert_distinct_turns, [call([], turn="1"), call([], turn="2"), call([], turn="1")])
    assert message.startswith("calls[2] (POST /v1/chat/completions) has the turn id of calls[0], '1'")


def test_retries_share_a_turn_id() -> None:
    first, second = call([], turn="1"), call([], turn="1")
    assert_distinct_turns([replace(first, status=503), second])
    counted = replace(second, headers={**second.headers, "x-stainless-retry-count": "1"})
    assert_distinct_turns([first, counted])
    uncounted = replace(second, headers={**second.headers, "x-stainless-retry-count": "0"})
    assert "is no retry of it" in refused(assert_distinct_turns, [replace(first, status=None), uncounted])


# --- history


def test_history_that_grows_by_what_came_passes() -> None:
    histories = [[USER], [USER, ASKING, RESULT], [USER, ASKING, RESULT, ANSWER, MORE]]
    answers = [ASKING, ANSWER, ANSWER]
    assert_history_kept([call(*pair, tools=[{"a": 1}]) for pair in zip(histories, answers, strict=True)])


def edited(message: Any, **fields: Any) -> Any:
    return {**copy.deepcopy(message), **fields}


def with_arguments(arguments: str) -> Any:
    message = copy.deepcopy(ASKING)
    message["tool_calls"][0]["function"]["arguments"] = arguments
    return message


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (
            [USER, with_arguments('{"item": "hinges"}'), RESULT],
            "calls[1].messages[1].tool_calls[0].function.arguments differs from character 7 on: "
            """'{"item" : "hinges"}' became '{"item": "hinges"}' (the answer to calls[0])""",
        ),
        (
            [USER, edited(ASKING, content=""), RESULT],
            'calls[1].messages[1].content was null and became "" (the answer to calls[0])',
        ),
        (
            [USER, edited(ASKING, extra={"a": 1}), RESULT],
            'calls[1].messages[1].extra was null and became {"a": 1} (the answer to calls[0])',
        ),
        (
            [edited(USER, content="How many?"), ASKING, RESULT],
            "calls[1].messages[0].content differs from character 8 on: "
            "'How many hinges are there?' became 'How many?'",
        ),
        ([USER], f"calls[1].messages[1] is gone: {json.dumps(ASKING)[:144]}... (the answer to calls[0])"),
        ([], f"calls[1].messages[0] is gone: {json.dumps(USER)}"),
        (
            [USER, {**ASKING, "tool_calls": [*ASKING["tool_calls"], 1]}],
            "calls[1].messages[1].tool_calls[1] was added: 1 (the answer to calls[0])",
        ),
    ],
)
def test_history_that_was_written_again_is_shown_where(messages: Any, said: str) -> None:
    message = refused(assert_history_kept, [call([USER], ASKING), call(messages)])
    assert message.startswith(f"the history of conversation 'c' was not kept: {said}. ")


def test_cause_and_remedy_are_told_where_they_show() -> None:
    message = refused(
        assert_history_kept,
        [call([USER], ASKING), call([USER, with_arguments('{"item": "hinges"}'), RESULT])],
    )
    assert "is the same JSON in other text" in message
    assert "Conversation.turn()" in message
    message = refused(assert_history_kept, [call([USER], ANSWER), call([USER, {**ANSWER, "type": "b"}])])
    assert message.endswith("Send back what came, as it came: antiphon.Turn does.")


def test_what_a_reply_said_of_reuse_is_read() -> None:
    request = httpx.Request("POST", "http://router/v1/chat/completions")
    told = {"X-Antiphon-Reuse": "path=reuse; matched=3; reason=full; prompt=4"}
    assert recorded(httpx.Response(200, headers=told, request=request)).reuse == Outcome(
        "reuse", "full", 3, 4
    )
    assert recorded(httpx.Response(200, request=request)).reuse is None


def test_long_texts_are_shown_around_the_difference() -> None:
    before, after = ({"role": "user", "content": "a" * 99 + letter + "z" * 99} for letter in "bc")
    message = refused(assert_history_kept, [call([before]), call([after])])
    shown = [f"...'{'a' * 24}{letter}{'z' * 23}'..." for letter in "bc"]
    assert f"from character 99 on: {shown[0]} became {shown[1]}" in message


def test_null_and_missing_fields_are_the_same() -> None:
    assert_history_kept([call([USER], ASKING), call([USER, {**ASKING, "refusal": None}, RESULT])])


@pytest.mark.parametrize("name", ["tools", "system", "instructions"])
def test_what_stands_before_the_messages_must_stay_too(name: str) -> None:
    message = refused(assert_history_kept, [call([USER], **{name: "a"}), call([USER, ANSWER], **{name: "b"})])
    assert f"calls[1].{name} differs from character 0 on" in message


def test_assistants_message_must_be_there_where_its_words_are_not_known() -> None:
    assert_history_kept([call([USER]), call([USER, ANSWER])])
    for histories in ([USER], [USER, MORE], [USER, {"type": "function_call_output"}]):
        message = refused(assert_history_kept, [call([USER]), call(histories)])
        assert "calls[1].messages[1] is not the assistant's answer to calls[0]" in message


def test_conversations_are_followed_each_on_its_own() -> None:
    other = [call([MORE], of="d"), call([MORE, ANSWER, USER], of="d")]
    assert_history_kept([call([USER]), other[0], call([USER, ANSWER, MORE]), other[1]])


def test_retries_and_failures_are_passed_over() -> None:
    failed = replace(call([USER, ANSWER, MORE]), status=500)
    assert_history_kept(
        [replace(call([USER]), status=500), call([USER], ANSWER), failed, call([USER, ANSWER, MORE])]
    )
    assert_history_kept(
        [call([USER], turn="1"), call([USER], ANSWER, turn="1"), call([USER, ANSWER], turn="2")]
    )


def test_history_is_compared_over_a_failure() -> None:
    failed = replace(call([USER, ANSWER, MORE]), status=500)
    message = refused(assert_history_kept, [call([USER], ANSWER), failed, call([MORE])])
    assert "calls[2].messages[0].content differs" in message


def test_history_kept_by_the_server_is_passed_over() -> None:
    first, other = at("responses", {"input": "a"}), {"input": "b", "previous_response_id": "1"}
    assert_history_kept([first, at("responses", other), at("responses", {"input": "c"})])


def test_history_that_becomes_a_text_is_not_kept() -> None:
    message = refused(
        assert_history_kept, [at("completions", {"prompt": "abc"}, "d"), at("completions", {"prompt": "abx"})]
    )
    assert "calls[1].prompt differs from character 2 on: 'abc' became 'abx'" in message
    message = refused(assert_history_kept, [call([USER]), at("completions", {"prompt": "abc"})])
    assert "calls[1].prompt was" in message


# --- the end


def test_end_of_a_conversation_passes_by_id_and_by_value(router: FakeRouter) -> None:
    with antiphon.conversation("a/é") as conversation:
        conversation.seen_by(antiphon.Router(router.base_url))
    assert_ended(router, conversation)
    assert_ended(router, "a/é")
    assert_ended(router.requests, "a/é")


async def test_end_that_a_thread_tells_is_waited_for(router: FakeRouter) -> None:
    conversation = antiphon.conversation("c")
    conversation.seen_by(antiphon.Router(router.base_url))
    conversation.close()
    await asyncio.to_thread(assert_ended, router, conversation)


def test_final_call_is_an_end(router: FakeRouter) -> None:
    final = Recorded("POST", "/v1/chat/completions", {"x-session-final": "true", "x-session-id": "c"})
    assert_ended([final], "c")


def test_conversation_that_goes_on_is_told_with_those_that_ended(router: FakeRouter) -> None:
    httpx.delete(f"{router.base_url}/conversations/other")
    message = refused(assert_ended, router, "c", within=0.01)
    assert message.startswith("conversation 'c' was not ended; these were: ['other']. Leave its with block")


# --- the whole


def test_loop_that_resubmits_what_came_passes_and_one_that_parses_it_does_not(router: FakeRouter) -> None:
    def loop(keeps: bool) -> list[Recorded]:
        router.requests.clear()
        router.replies(tool_call("stock", item="ü"), "12")
        with OpenAI(base_url=router.base_url, api_key="k") as client, antiphon.conversation() as conversation:
            turn = conversation.turn([USER])
            messages: list[Any] = [USER]
            for _ in range(2):
                stamp = antiphon.stamp(conversation)
                reply = client.chat.completions.create(
                    model="m",
                    messages=turn.messages if keeps else messages,
                    extra_body=stamp.body,
                    extra_headers=stamp.headers,
                )
                turn.add_reply(reply)
                message: Any = reply.choices[0].message.model_dump()
                messages.append(message)
                for asked in message["tool_calls"] or ():
                    function = asked["function"]
                    function["arguments"] = json.dumps(json.loads(function["arguments"]))
                    turn.add_tool_result(asked["id"], "12")
                    messages.append({"role": "tool", "tool_call_id": asked["id"], "content": "12"})
        return router.calls()

    kept = loop(True)
    assert_same_conversation(kept)
    assert_distinct_turns(kept)
    assert_history_kept(kept)
    assert [made.reuse.reason for made in kept if made.reuse] == ["first", "full"]

    parsed = loop(False)
    message = refused(assert_history_kept, parsed)
    assert re.search(r"calls\[1\]\.messages\[1\]\.tool_calls\[0\]\.function\.arguments differs", message)
    assert [made.reuse.reason for made in parsed if made.reuse] == ["first", "cut"]
