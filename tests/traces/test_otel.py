from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from antiphon_server.traces.read import read
from antiphon_server.traces.trace import Call, Trace

Lines = Callable[..., Trace]
SAID = [{"role": "user", "parts": [{"type": "text", "content": "Which files?"}]}]
USER = {"role": "user", "content": "Which files?"}
ANSWER = [{"role": "assistant", "parts": [{"type": "text", "content": "Three."}], "finish_reason": "stop"}]
TOKENS: dict[str, str | int] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.usage.input_tokens": 14,
    "gen_ai.usage.output_tokens": 3,
}


def value(item: Any) -> dict[str, Any]:
    match item:
        case bool():
            return {"boolValue": item}
        case int():
            return {"intValue": str(item)}
        case float():
            return {"doubleValue": item}
        case list():
            return {"arrayValue": {"values": [value(each) for each in item]}}
        case Mapping():
            return {"kvlistValue": {"values": pairs(item)}}
        case _:
            return {"stringValue": item}


def pairs(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": value(item)} for name, item in attributes.items()]


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def span(
    attributes: Mapping[str, Any], at: float = 0.0, *, trace: str = "t", events: Any = ()
) -> dict[str, Any]:
    return {
        "traceId": trace,
        "spanId": "s",
        "name": "chat m",
        "startTimeUnixNano": str(int((1767225600 + at) * 1e9)),
        "endTimeUnixNano": str(int((1767225602 + at) * 1e9)),
        "attributes": pairs(attributes),
        "events": [{"name": name, "attributes": pairs(said)} for name, said in events],
    }


def only(trace: Trace) -> Call:
    assert trace.format == "otel"
    ((call,),) = (conversation.calls for conversation in trace.conversations)
    return call


def test_tempo_s_name_for_resources(lines: Lines) -> None:
    (spans,) = otlp(span(TOKENS)).values()
    assert only(lines({"batches": spans})).prompt == 14


@pytest.mark.parametrize("as_text", [True, False])
def test_messages_of_the_conventions(lines: Lines, as_text: bool) -> None:
    call = {"type": "tool_call", "id": "1", "name": "ls", "arguments": {"path": "/"}}
    thought = {"type": "reasoning", "content": "hm"}
    result = {"type": "tool_call_response", "id": "1", "response": "a b c"}
    told = {
        "gen_ai.input.messages": [
            *SAID,
            {"role": "assistant", "parts": [thought, call]},
            {"role": "tool", "parts": [result]},
        ],
        "gen_ai.output.messages": ANSWER,
        "gen_ai.system_instructions": [{"type": "text", "content": "Be brief."}],
        "gen_ai.tool.definitions": [{"type": "function", "name": "ls"}],
    }
    said = {name: json.dumps(item) if as_text else item for name, item in told.items()}
    call_of = only(lines(otlp(span({**TOKENS, **said, "gen_ai.usage.cache_read.input_tokens": 8}))))
    function = {"name": "ls", "arguments": '{"path":"/"}'}
    assert call_of.history == (
        {"role": "system", "content": "Be brief."},
        USER,
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "a b c"},
    )
    assert call_of.reply == {"role": "assistant", "content": "Three."}
    assert call_of.tools == ({"type": "function", "name": "ls"},)
    assert (call_of.prompt, call_of.answer, call_of.cached, call_of.seconds) == (14, 3, 8, 2.0)


@pytest.mark.parametrize(
    ("attributes", "events"),
    [
        ({"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Which files?"}, ()),
        ({"gen_ai.prompt": '[{"role": "user", "content": "Which files?"}]'}, ()),
        (
            {
                "llm.input_messages.0.message.role": "user",
                "llm.input_messages.0.message.content": "Which files?",
            },
            (),
        ),
        ({}, [("gen_ai.content.prompt", {"gen_ai.prompt": '[{"role": "user", "content": "Which files?"}]'})]),
        ({}, [("gen_ai.user.message", {"content": "Which files?"})]),
        ({}, [("gen_ai.user.message", {"gen_ai.event.content": '{"content": "Which files?"}'})]),
        ({}, [("gen_ai.client.inference.operation.details", {"gen_ai.input.messages": json.dumps(SAID)})]),
    ],
)
def test_messages_wherever_they_were_captured(lines: Lines, attributes: Any, events: Any) -> None:
    assert only(lines(otlp(span({**TOKENS, **attributes}, events=events)))).history == (USER,)


@pytest.mark.parametrize(
    ("attributes", "events"),
    [
        ({"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "Three."}, ()),
        ({"gen_ai.completion": '[{"role": "assistant", "content": "Three."}]'}, ()),
        (
            {
                "llm.output_messages.0.message.role": "assistant",
                "llm.output_messages.0.message.content": "Three.",
            },
            (),
        ),
        ({}, [("gen_ai.choice", {"message": '{"role": "assistant", "content": "Three."}'})]),
        ({}, [("gen_ai.choice", {"gen_ai.event.content": '{"message": {"content": "Three."}}'})]),
        (
            {},
            [
                (
                    "gen_ai.content.completion",
                    {"gen_ai.completion": '[{"role": "assistant", "content": "Three."}]'},
                )
            ],
        ),
    ],
)
def test_answers_wherever_they_were_captured(lines: Lines, attributes: Any, events: Any) -> None:
    call = only(lines(otlp(span({**TOKENS, **attributes}, events=events))))
    assert call.reply == {"role": "assistant", "content": "Three."}


def test_messages_in_pieces_are_in_order(lines: Lines) -> None:
    said = {f"gen_ai.prompt.{i}.{name}": f"{i}" for i in reversed(range(12)) for name in ("role", "content")}
    history = only(lines(otlp(span({**TOKENS, **said})))).history
    assert history is not None
    assert [message["content"] for message in history] == [str(i) for i in range(12)]


def test_calls_of_tools_piece_by_piece(lines: Lines) -> None:
    prefix = "llm.output_messages.0.message"
    call = only(
        lines(
            otlp(
                span(
                    {
                        "openinference.span.kind": "LLM",
                        "llm.token_count.prompt": 14,
                        f"{prefix}.role": "assistant",
                        f"{prefix}.tool_calls.0.tool_call.id": "1",
                        f"{prefix}.tool_calls.0.tool_call.function.name": "ls",
                        f"{prefix}.tool_calls.0.tool_call.function.arguments": "{}",
                        "llm.tools.0.tool.json_schema": '{"name": "ls"}',
                    }
                )
            )
        )
    )
    assert call.reply is not None
    assert call.reply["tool_calls"] == [
        {"id": "1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    ]
    assert call.tools == ({"name": "ls"},)


@pytest.mark.parametrize("name", ["gen_ai.conversation.id", "session.id"])
def test_conversations_by_their_id(lines: Lines, name: str) -> None:
    trace = lines(otlp(span({**TOKENS, name: "c"}, 10.0, trace="b"), span({**TOKENS, name: "c"}, trace="a")))
    (conversation,) = trace.conversations
    assert conversation.name == "c"
    assert [call.gap for call in conversation.calls] == [None, 8.0]


def test_conversations_by_their_messages(lines: Lines) -> None:
    after = [*SAID, *ANSWER, {"role": "user", "parts": [{"type": "text", "content": "Name them."}]}]
    spans = [
        span(
            {
                **TOKENS,
                "gen_ai.input.messages": json.dumps(said),
                "gen_ai.output.messages": json.dumps(ANSWER),
            },
            at,
        )
        for at, said in ((10.0, after), (0.0, SAID))
    ]
    trace = lines(*map(otlp, spans))
    assert [len(conversation.calls) for conversation in trace.conversations] == [2]
    assert "2 calls name no conversation" in trace.notes[0]


def test_conversations_by_trace_and_agent_where_nothing_else_tells(lines: Lines) -> None:
    trace = lines(otlp(span(TOKENS), span({**TOKENS, "gen_ai.agent.name": "sub"}), span(TOKENS, 5.0)))
    assert sorted((c.name, len(c.calls)) for c in trace.conversations) == [("t", 2), ("t/sub", 1)]
    assert any("3 calls name no conversation and have no text" in note for note in trace.notes)


def test_other_spans_are_left_out(lines: Lines) -> None:
    others = [
        {"gen_ai.operation.name": "execute_tool"},
        {"gen_ai.operation.name": "embeddings"},
        {"http.method": "GET"},
    ]
    trace = lines(otlp(span(TOKENS), *map(span, others), span({"gen_ai.operation.name": "chat"})))
    assert only(trace).prompt == 14
    assert "3 spans that are no model calls were left out" in trace.notes
    assert "1 calls without tokens and messages were left out" in trace.notes


def test_spans_of_the_engine(lines: Lines) -> None:
    said = {
        "gen_ai.usage.prompt_tokens": 14,
        "gen_ai.usage.completion_tokens": 3,
        "gen_ai.latency.time_to_first_token": 0.25,
        "gen_ai.response.model": "m",
    }
    call = only(lines(otlp({**span(said), "name": "llm_request"})))
    assert (call.prompt, call.answer, call.ttft, call.model) == (14, 3, 0.25, "m")


def test_spans_as_the_sdk_writes_them(tmp_path: Any) -> None:
    """As the console exporter prints them: documents of several lines."""
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    for _ in range(2):
        with provider.get_tracer("t").start_as_current_span("chat m") as open_span:
            open_span.set_attributes({**TOKENS, "gen_ai.conversation.id": "c"})
            open_span.add_event("gen_ai.user.message", {"content": "Which files?"})
    path = tmp_path / "spans.json"
    path.write_text("".join(done.to_json() + "\n" for done in memory.get_finished_spans()))
    (conversation,) = read([path]).conversations
    assert conversation.name == "c"
    assert [(call.prompt, call.history) for call in conversation.calls] == [(14, (USER,))] * 2
