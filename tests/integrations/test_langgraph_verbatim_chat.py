"""The chat model against a server on a real socket: replies go back as they came, whatever carried them."""

from __future__ import annotations

import functools
import json
import operator
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("langchain_openai")

from langchain_core.load import dumpd, dumps, load
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    convert_to_openai_messages,
    merge_message_runs,
    message_chunk_to_message,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.outputs import ChatGeneration
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import SecretStr

from antiphon_langgraph import VerbatimChatOpenAI, _chat_openai, chat_openai
from antiphon_langgraph._verbatim import KEPT
from doubles.scripted import Message, Scripted, say, scripted

ARGUMENTS = '{"city":"Z\\u00fcrich" ,"days":1.0}'
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": ARGUMENTS}}
RAW: Message = {"content": "", "reasoning": "Let me see.", "tool_calls": [CALL]}
SENT = {"role": "assistant", **RAW}
PIECE: Message = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}
DELTAS: list[Message] = [
    {"role": "assistant", "content": ""},
    {"reasoning": "Let me "},
    {"reasoning": "see."},
    {"tool_calls": [PIECE]},
    {"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS[:9]}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS[9:]}}]},
]
DEFAULT_CALL = {**CALL, "function": {"name": "look", "arguments": '{"city": "Zürich", "days": 1.0}'}}
DEFAULT = {"role": "assistant", "content": None, "tool_calls": [DEFAULT_CALL]}
HELLO = HumanMessage("hello")


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as server:
        yield server


@pytest.fixture
def model(server: Scripted) -> VerbatimChatOpenAI:
    return chat_openai(model="m", base_url=server.base_url, api_key="k")


def reply(server: Scripted, model: Any, *, stream: bool = False) -> AIMessage:
    """The reply to a first call, as the caller holds it."""
    server.script.append(say(RAW, deltas=DELTAS))
    if not stream:
        return model.invoke([HELLO])  # type: ignore[no-any-return]
    first, *rest = model.stream([HELLO])
    for chunk in rest:
        first += chunk
    assert isinstance(first, AIMessageChunk)
    return first


def resubmitted(server: Scripted, model: Any, *messages: BaseMessage) -> list[Message]:
    model.invoke([HELLO, *messages])
    return server.sent()


streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@streaming
def test_a_reply_goes_back_as_it_came(server: Scripted, model: VerbatimChatOpenAI, stream: bool) -> None:
    answer = reply(server, model, stream=stream)
    assert [call["args"] for call in answer.tool_calls] == [{"city": "Zürich", "days": 1.0}]
    assert resubmitted(server, model, answer) == [SENT]
    assert server.bodies[-1].keys() == {"model", "messages", "stream"}
    assert KEPT not in json.dumps(server.bodies)


@streaming
async def test_a_reply_goes_back_as_it_came_async(
    server: Scripted, model: VerbatimChatOpenAI, stream: bool
) -> None:
    server.script.append(say(RAW, deltas=DELTAS))
    if stream:
        chunks = [chunk async for chunk in model.astream([HELLO])]
        answer: AIMessage = sum_of(iter(chunks))
    else:
        answer = await model.ainvoke([HELLO])
    await model.ainvoke([HELLO, answer])
    assert server.sent() == [SENT]


def test_chat_openai_would_have_rewritten_it(server: Scripted, model: VerbatimChatOpenAI) -> None:
    answer = reply(server, model)
    plain = ChatOpenAI(model="m", base_url=server.base_url, api_key=SecretStr("k"))
    assert resubmitted(server, plain, answer) == [DEFAULT]


CARRIERS: dict[str, Any] = {
    "as it is": lambda message: message,
    "converted": message_chunk_to_message,
    "copied": lambda message: message.model_copy(deep=True),
    "given an id": lambda message: message.model_copy(update={"id": "other"}),
    "pickled": lambda message: pickle.loads(pickle.dumps(message)),
    "as dicts": lambda message: messages_from_dict(json.loads(json.dumps(messages_to_dict([message]))))[0],
    "loaded": lambda message: load(json.loads(dumps(message)), allowed_objects="messages"),
    "checkpointed": lambda message: JsonPlusSerializer().loads_typed(
        JsonPlusSerializer().dumps_typed(message)
    ),
}


@pytest.mark.filterwarnings("ignore:The function `load` is in beta")
@streaming
@pytest.mark.parametrize("carrier", CARRIERS)
def test_it_survives(server: Scripted, model: VerbatimChatOpenAI, carrier: str, stream: bool) -> None:
    answer = CARRIERS[carrier](reply(server, model, stream=stream))
    assert resubmitted(server, model, answer) == [SENT]


def test_the_name_of_an_agent_is_sent_along(server: Scripted, model: VerbatimChatOpenAI) -> None:
    answer = reply(server, model)
    answer.name = "scout"
    assert resubmitted(server, model, answer) == [{**SENT, "name": "scout"}]


@streaming
def test_edits_are_sent(server: Scripted, model: VerbatimChatOpenAI, stream: bool) -> None:
    answer = message_chunk_to_message(reply(server, model, stream=stream))
    assert isinstance(answer, AIMessage)
    redacted = answer.model_copy(update={"content": "[REDACTED]"})
    assert resubmitted(server, model, redacted) == [{**DEFAULT, "content": "[REDACTED]"}]
    uncalled = answer.model_copy(update={"tool_calls": []})
    assert resubmitted(server, model, uncalled) == [{"role": "assistant", "content": ""}]
    other = [{**answer.tool_calls[0], "args": {"city": "Rome"}}]
    [sent] = resubmitted(server, model, answer.model_copy(update={"tool_calls": other}))
    assert sent["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'
    assert "reasoning" not in sent


def test_runs_of_messages_that_langchain_merges_are_edits(
    server: Scripted, model: VerbatimChatOpenAI
) -> None:
    both = merge_message_runs([reply(server, model), reply(server, model)])
    [sent] = resubmitted(server, model, *both)
    assert [call["function"]["arguments"] for call in sent["tool_calls"]] == [
        DEFAULT_CALL["function"]["arguments"]  # type: ignore[index]
    ] * 2


@streaming
def test_broken_calls_go_back_as_they_came(server: Scripted, model: VerbatimChatOpenAI, stream: bool) -> None:
    broken = {**CALL, "function": {"name": "look", "arguments": "city: Rome"}}
    server.script.append(say({"content": None, "tool_calls": [{**broken, "index": 0}], "reasoning": "x"}))
    answer = message_chunk_to_message(sum_of(model.stream([HELLO]))) if stream else model.invoke([HELLO])
    assert isinstance(answer, AIMessage)
    assert [call["args"] for call in answer.invalid_tool_calls] == ["city: Rome"]
    [sent] = resubmitted(server, model, answer)
    assert sent == {"role": "assistant", "content": None, "tool_calls": [broken], "reasoning": "x"}


def sum_of(chunks: Iterator[Any]) -> Any:
    first, *rest = chunks
    return first + rest


def test_plain_text_costs_nothing(server: Scripted, model: VerbatimChatOpenAI) -> None:
    assert KEPT not in model.invoke([HELLO]).additional_kwargs
    for chunk in model.stream([HELLO]):
        assert KEPT not in chunk.additional_kwargs


def test_usage_refusals_and_several_answers_are_as_ever(server: Scripted, model: VerbatimChatOpenAI) -> None:
    refused = {"content": None, "refusal": "No."}
    server.script.append(say(RAW, refused, {"content": "Hi"}))
    result = model.generate([[HELLO]], n=3).generations[0]
    first, second, third = (one.message for one in result if isinstance(one, ChatGeneration))
    assert isinstance(first, AIMessage)
    assert first.usage_metadata is not None
    assert first.usage_metadata["total_tokens"] == 10
    assert resubmitted(server, model, first) == [SENT]
    assert resubmitted(server, model, second) == [{"role": "assistant", "content": "", "refusal": "No."}]
    assert resubmitted(server, model, third) == [{"role": "assistant", "content": "Hi"}]


def test_a_stream_of_several_answers_is_left_alone(server: Scripted, model: VerbatimChatOpenAI) -> None:
    mixed = {"index": 1, "delta": {"content": "other", "reasoning": "x"}, "finish_reason": None}
    server.script.append(say(RAW, deltas=DELTAS, before=[mixed]))
    chunks = list(model.stream([HELLO]))
    assert chunks[0].content == "other"
    assert all(KEPT not in chunk.additional_kwargs for chunk in chunks)


def test_what_comes_after_the_end_of_a_stream_counts_as_an_edit(
    server: Scripted, model: VerbatimChatOpenAI
) -> None:
    late = {"index": 0, "delta": {"content": "late"}, "finish_reason": "stop"}
    server.script.append(say(RAW, deltas=DELTAS, after=[late]))
    answer = sum_of(model.stream([HELLO]))
    assert resubmitted(server, model, answer) == [{**DEFAULT, "content": "late"}]


def test_callbacks_see_what_is_kept(server: Scripted, model: VerbatimChatOpenAI) -> None:
    """LangGraph's ``stream_mode="messages"`` is one: it takes the chunk from there."""
    from langchain_core.callbacks import BaseCallbackHandler

    class Seen(BaseCallbackHandler):
        def __init__(self) -> None:
            self.kept: list[bool] = []

        def on_llm_new_token(self, token: Any, *, chunk: Any = None, **kwargs: Any) -> None:
            self.kept.append(KEPT in chunk.message.additional_kwargs)

    seen = Seen()
    server.script.append(say(RAW, deltas=DELTAS))
    list(model.stream([HELLO], config={"callbacks": [seen]}))
    assert seen.kept.count(True) == 1


def test_another_model_of_the_same_server_gets_the_default(
    server: Scripted, model: VerbatimChatOpenAI
) -> None:
    answer = reply(server, model)
    assert resubmitted(server, model.bind(model="other"), answer) == [DEFAULT]
    assert resubmitted(server, model.bind(model="m"), answer) == [SENT]


def test_another_server_gets_the_default(server: Scripted, model: VerbatimChatOpenAI) -> None:
    answer = reply(server, model)
    with scripted() as other:
        elsewhere = chat_openai(model="m", base_url=other.base_url, api_key="k")
        assert resubmitted(other, elsewhere, answer) == [DEFAULT]
        assert KEPT not in json.dumps(other.bodies)


def test_towards_a_vendor_it_is_a_plain_chat_openai(
    server: Scripted, model: VerbatimChatOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = reply(server, model)
    monkeypatch.setattr(_chat_openai, "is_vendor", lambda host: host == "127.0.0.1")
    assert resubmitted(server, model, answer) == [DEFAULT]
    assert KEPT not in reply(server, model).additional_kwargs
    assert KEPT not in reply(server, model, stream=True).additional_kwargs


def test_what_is_kept_is_in_no_request_of_others(server: Scripted, model: VerbatimChatOpenAI) -> None:
    answer = reply(server, model)
    others = ChatOpenAI(model="m", api_key=SecretStr("k"), use_responses_api=True)
    assert KEPT not in json.dumps(others._get_request_payload([answer]))
    assert KEPT not in json.dumps(convert_to_openai_messages([answer]))


def test_the_responses_api_is_left_alone(server: Scripted) -> None:
    responses = chat_openai(model="m", base_url=server.base_url, api_key="k", use_responses_api=True)
    assert "input" in responses._get_request_payload([HELLO])


def test_v1_content_blocks_do_not_count_as_edits(server: Scripted) -> None:
    model = chat_openai(model="m", base_url=server.base_url, api_key="k", output_version="v1")
    for stream in (False, True):
        [sent] = resubmitted(server, model, reply(server, model, stream=stream))
        assert sent["tool_calls"] == [CALL]
        assert sent["reasoning"] == "Let me see."


@streaming
def test_parsed_replies_go_back_without_what_was_parsed(server: Scripted, stream: bool) -> None:
    """The client parses; what it adds to the reply did not come over the wire."""
    model = chat_openai(model="m", base_url=server.base_url, api_key="k")
    schema = {"title": "Place", "type": "object", "properties": {"city": {"type": "string"}}}
    asking = model.with_structured_output(schema, method="json_schema", include_raw=True)
    server.script.append(say({"content": '{"city":"Rome"}', "reasoning": "x"}))
    said = functools.reduce(operator.add, asking.stream([HELLO])) if stream else asking.invoke([HELLO])
    assert said["parsed"] == {"city": "Rome"}
    raw = {"role": "assistant", "content": '{"city":"Rome"}', "reasoning": "x"}
    assert resubmitted(server, model, said["raw"]) == [raw]


@streaming
def test_a_reply_that_cannot_be_kept_is_a_reply(
    server: Scripted, model: VerbatimChatOpenAI, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_chat_openai, "keep", lambda *_: 1 / 0)
    answer = reply(server, model, stream=stream)
    assert answer.tool_calls
    assert resubmitted(server, model, answer) == [DEFAULT]


def test_a_copy_follows_each_call_and_the_model_stays_as_it_is(
    server: Scripted, model: VerbatimChatOpenAI
) -> None:
    before = dumpd(model)
    first, second = iter(model.stream([HELLO])), iter(model.stream([HELLO]))
    server.script.extend([say(RAW, deltas=DELTAS)] * 2)
    pairs = list(zip(first, second, strict=True))
    for chunks in zip(*pairs, strict=True):
        assert resubmitted(server, model, sum_of(iter(chunks))) == [SENT]
    assert dumpd(model) == before
    assert model._call is None
