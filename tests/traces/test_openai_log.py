from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from antiphon_server.traces.prefix import Change, repeats
from antiphon_server.traces.trace import Call, Trace

Lines = Callable[..., Trace]
USER = {"role": "user", "content": "Which files are there?"}
SAID = {"role": "assistant", "content": "Three."}
NEXT = {"role": "user", "content": "Name them."}
USAGE = {"prompt_tokens": 14, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}


def reply(text: str = "Three.", **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    return {"model": "m", "choices": [{"index": 0, "message": message}], "usage": USAGE, **more}


def request(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **more}


def only(trace: Trace) -> Call:
    assert trace.format == "openai_log"
    ((call,),) = (conversation.calls for conversation in trace.conversations)
    return call


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("request", "response"),
        ("request_body", "response_body"),
        ("reqPayload", "respPayload"),
        ("body", "response"),
        ("input", "output"),
    ],
)
def test_request_and_response_under_usual_names(lines: Lines, asked: str, answered: str) -> None:
    call = only(lines({asked: request(USER), answered: reply()}))
    assert (call.prompt, call.answer, call.cached, call.model) == (14, 3, 8, "m")
    assert call.history == (USER,)
    assert call.reply is not None
    assert call.reply["content"] == "Three."


def test_bodies_as_text_and_within_envelopes(lines: Lines) -> None:
    record = {
        "request": {"url": "/v1/chat/completions", "headers": {"X-Session-ID": "c"}, "body": request(USER)},
        "response": {"status": 200, "body": json.dumps(reply())},
    }
    trace = lines({**record, "response": json.dumps(record["response"])})
    assert only(trace).prompt == 14
    assert trace.conversations[0].name == "c"


def test_record_that_is_its_own_request(lines: Lines) -> None:
    assert only(lines({**request(USER), "response": "Three.", "usage": USAGE})).prompt == 14
    assert (
        only(lines({**request(USER), "prompt_tokens": 9, "completion_tokens": 2, "response": "x"})).prompt
        == 9
    )


@pytest.mark.parametrize(
    "at",
    [1767225600, 1767225600000, 1767225600000000, 1767225600 * 10**9, "2026-01-01T00:00:00Z", "1767225600"],
)
def test_times_in_any_unit(lines: Lines, at: Any) -> None:
    first = {
        "time": at,
        "latency_ms": 2500,
        "request": request(USER, conversation_id="c"),
        "response": reply(),
    }
    later = {
        "start_time": "2026-01-01T01:00:10+01:00",
        "end_time": "2026-01-01T00:00:12",
        "first_token_time": "2026-01-01T00:00:10.5",
        "request": request(USER, SAID, NEXT, conversation_id="c"),
        "response": reply(),
    }
    (conversation,) = lines(later, first).conversations
    assert [(call.at, call.seconds, call.ttft, call.gap) for call in conversation.calls] == [
        (0.0, 2.5, None, None),
        (10.0, 2.0, 0.5, 7.5),
    ]


def test_time_of_the_response_where_there_is_no_other(lines: Lines) -> None:
    both = [
        {"request": request(USER, session_id="c"), "response": reply(created=100)},
        {"request": request(USER, SAID, NEXT, session_id="c"), "response": reply(created=130)},
    ]
    trace = lines(*both)
    assert [call.gap for call in trace.conversations[0].calls] == [None, 30.0]
    assert any("1 gaps hold the answer before them" in note for note in trace.notes)


@pytest.mark.parametrize(
    "more",
    [
        {"conversation_id": "c"},
        {"metadata": {"session_id": "c"}},
        {"extra": {"metadata": {"thread_id": "c"}}},
        {"headers": {"x-session-id": "c"}},
        {"request_headers": {"X-Conversation-ID": "c"}},
        {"request_properties": {"Helicone-Session-Id": "c"}},
        {"request": request(USER, metadata={"conversation_id": "c"}), "conversation_id": "other"},
        {"request": request(USER, conversation={"id": "c"})},
        {"request": request(USER, prompt_cache_key="c")},
        {"run_type": "llm", "session_id": "project", "metadata": {"thread_id": "c"}},
    ],
)
def test_conversation_is_named(lines: Lines, more: Any) -> None:
    trace = lines({"request": request(USER), "response": reply(), **more})
    assert [conversation.name for conversation in trace.conversations] == ["c"]
    assert not trace.notes


def test_models_of_a_conversation_are_conversations(lines: Lines) -> None:
    one = {"request": request(USER, conversation_id="c", parent_session_id="p"), "response": reply()}
    other = {"request": {**request(USER, conversation_id="c"), "model": "small"}, "response": reply()}
    trace = lines(one, other, one)
    assert [(c.name, c.parent, len(c.calls)) for c in trace.conversations] == [
        ("c", "p", 2),
        ("c/small", "c", 1),
    ]


def test_calls_without_id_are_chained(lines: Lines) -> None:
    records = [
        {"request": request(USER), "response": reply()},
        {"request": request({"role": "user", "content": "Other."}), "response": reply("Yes.")},
        {"request": request(USER, SAID, NEXT), "response": reply("a, b, c")},
    ]
    trace = lines(*records)
    assert [[call.prompt for call in c.calls] for c in trace.conversations] == [[14, 14], [14]]
    assert "3 calls name no conversation" in trace.notes[0]
    assert "2 conversations" in trace.notes[0]
    (_, repeat) = repeats(trace.conversations[0])
    assert repeat is not None
    assert (repeat.change, repeat.held, repeat.answer) == (
        Change.EXTENSION,
        17,
        0,
    )  # no longer than its prompt


def test_trace_id_is_a_conversation_where_calls_share_it(lines: Lines) -> None:
    record = {**request(USER), "response": reply()}
    trace = lines({**record, "trace_id": "a"}, {**record, "trace_id": "b"}, {**record, "trace_id": "a"})
    assert sorted((c.name, len(c.calls), c.guessed) for c in trace.conversations) == [
        ("a", 2, False),
        ("chain-1", 1, True),
    ]


def test_batches_are_put_together(lines: Lines) -> None:
    asked = {"custom_id": "r", "method": "POST", "url": "/v1/chat/completions", "body": request(USER)}
    answered = {"id": "b", "custom_id": "r", "response": {"status_code": 200, "body": reply()}, "error": None}
    call = only(lines(asked, answered))
    assert (call.history, call.prompt) == ((USER,), 14)
    assert only(lines(answered, asked)).history == (USER,)
    assert only(lines(answered)).history is None


def test_failed_calls_are_left_out(lines: Lines) -> None:
    good = {"request": request(USER), "response": reply()}
    trace = lines(
        good,
        {"request": request(USER), "response": {"error": {"message": "no"}}},
        {"request": request(USER), "response": {"status_code": 429, "body": {}}},
        {"request": request(USER), "error": "timeout"},
        {**request(USER), "status": "failure", "response": None},
    )
    assert only(trace).prompt == 14
    assert "4 calls that failed were left out" in trace.notes


def test_runs_that_are_no_model_calls_are_left_out(lines: Lines) -> None:
    run = {"run_type": "llm", "inputs": request(USER), "outputs": reply()}
    trace = lines(run, {"run_type": "chain", "inputs": {}, "outputs": {}})
    assert only(trace).prompt == 14
    assert "1 runs that are no model calls were left out" in trace.notes


def test_answers_that_are_not_logged_are_in_the_next_request(lines: Lines) -> None:
    trace = lines(request(USER), request(USER, SAID, NEXT))
    (conversation,) = trace.conversations
    assert conversation.calls[0].reply == SAID
    assert conversation.calls[0].answer == round((9 + 2 + 6 + 16) / 4)
    assert (conversation.calls[1].reply, conversation.calls[1].answer) == (None, 0)
    assert "1 answers are not in the log: they count as empty" in trace.notes
    assert trace.estimated


def test_other_history_does_not_tell_the_answer(lines: Lines) -> None:
    other = {"role": "user", "content": "Forget it."}
    first, second = (request(said, conversation_id="c") for said in (USER, other))
    trace = lines(first, {**second, "messages": [other, SAID, NEXT]})
    assert [call.reply for call in trace.conversations[0].calls] == [None, None]


def test_responses_endpoint(lines: Lines) -> None:
    call = {"type": "function_call", "call_id": "1", "name": "ls", "arguments": '{"path": "/"}'}
    output = [{"type": "reasoning", "summary": []}, call]
    usage = {
        "input_tokens": 20,
        "output_tokens": 9,
        "input_tokens_details": {"cached_tokens": 16},
        "output_tokens_details": {"reasoning_tokens": 5},
    }
    tools = [{"type": "function", "name": "ls"}]
    first = {
        "request": {"model": "m", "instructions": "Be brief.", "input": "Which files?", "tools": tools},
        "response": {"id": "r1", "output": output, "usage": usage},
    }
    result = {"type": "function_call_output", "call_id": "1", "output": "a b c"}
    second = {
        "request": {"model": "m", "previous_response_id": "r1", "input": [result]},
        "response": {"id": "r2", "output": [], "usage": usage},
    }
    (conversation,) = lines(first, second).conversations
    one, two = conversation.calls
    assert one.history == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Which files?"},
    )
    assert (one.prompt, one.answer, one.cached, one.tools) == (20, 9, 16, tuple(tools))
    assert one.reply is not None
    assert one.reply["tool_calls"][0]["function"] == {"name": "ls", "arguments": '{"path": "/"}'}
    assert one.reply["reasoning_tokens"] == 5
    assert two.history is not None
    assert [message["role"] for message in two.history] == ["system", "user", "assistant", "tool"]


def test_messages_endpoint(lines: Lines) -> None:
    usage = {
        "input_tokens": 4,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 20,
        "output_tokens": 7,
    }
    content = [{"type": "text", "text": "Three."}]
    call = only(
        lines(
            {
                "request": {"model": "m", "system": "Be brief.", "max_tokens": 9, "messages": [USER]},
                "response": {"type": "message", "role": "assistant", "content": content, "usage": usage},
            }
        )
    )
    assert (call.prompt, call.answer, call.cached) == (124, 7, 100)
    assert call.reply == {"role": "assistant", "content": content}


def test_usage_that_counts_the_cached_tokens_already(lines: Lines) -> None:
    usage = {"prompt_tokens": 124, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}
    call = only(lines({"request": request(USER), "response": reply(usage=usage)}))
    assert (call.prompt, call.cached) == (124, 100)


def test_stream_logged_by_its_chunks(lines: Lines) -> None:
    chunks = [{"choices": [{"delta": {"content": word}}]} for word in ("Th", "ree.")]
    call = only(lines({"request": request(USER), "response": [*chunks, {"choices": [], "usage": USAGE}]}))
    assert (call.prompt, call.answer) == (14, 3)
    assert call.reply == {"role": "assistant", "content": "Three."}


def test_langchain_messages_with_calls_of_tools(lines: Lines) -> None:
    calls = [{"name": "ls", "args": {"path": "/"}, "id": "1", "type": "tool_call"}]
    messages = [
        {"type": "human", "content": "Which files are there?"},
        {"type": "ai", "content": "", "tool_calls": calls},
        {
            "lc": 1,
            "id": ["langchain", "schema", "messages", "ToolMessage"],
            "kwargs": {"content": "a", "tool_call_id": "1"},
        },
    ]
    call = only(lines({"run_type": "llm", "inputs": {"messages": messages}, "outputs": reply()}))
    function = {"name": "ls", "arguments": '{"path":"/"}'}
    assert call.history == (
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "a", "tool_call_id": "1"},
    )


def test_equal_messages_are_held_once(lines: Lines) -> None:
    (conversation,) = lines(*(request(USER, *[SAID, NEXT] * n) for n in range(4))).conversations
    held = {id(message) for call in conversation.calls for message in call.history or ()}
    assert len(held) == 3


def test_usage_alone_has_no_history(lines: Lines) -> None:
    trace = lines({"model": "m", "conversation_id": "c", "response": {"usage": USAGE}}, format="openai_log")
    assert (only(trace).history, only(trace).prompt) == (None, 14)
    assert not trace.estimated
