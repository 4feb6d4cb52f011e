"""Turns fed with what openai's client makes of replies, and sent with it: what goes out is what came in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI, OpenAI, pydantic_function_tool

import antiphon
from antiphon import Turn, TurnError

ASK: Any = [{"role": "user", "content": "What is there?"}]
COMMON: dict[str, Any] = {"id": "x-1", "created": 1, "model": "m"}

Json = dict[str, Any]


class Item(pydantic.BaseModel):
    item: str


@dataclass
class Server:
    """``message``: of the next reply; ``deltas``: of the next stream. ``sent``: messages of the last call."""

    message: Json = field(default_factory=dict)
    deltas: list[Json] = field(default_factory=list)
    sent: list[Json] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.sent = body["messages"]
        if body.get("stream"):
            finishes = [None] * (len(self.deltas) - 1) + ["stop"]
            choices = [
                {"index": 0, "delta": delta, "finish_reason": finish}
                for delta, finish in zip(self.deltas, finishes, strict=True)
            ]
            chunks = [{**COMMON, "object": "chat.completion.chunk", "choices": [each]} for each in choices]
            chunks.append({**COMMON, "object": "chat.completion.chunk", "choices": [], "usage": None})
            text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
            headers = {"content-type": "text/event-stream"}
            return httpx.Response(200, text=f"{text}data: [DONE]\n\n", headers=headers)
        choice = {"index": 0, "finish_reason": "stop", "message": self.message}
        return httpx.Response(200, json={**COMMON, "object": "chat.completion", "choices": [choice]})

    async def aserve(self, request: httpx.Request) -> httpx.Response:
        return self(request)


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    # openai 3 takes clients of httpx too
    transport: Any = httpx.Client(transport=httpx.MockTransport(server), trust_env=False)
    with OpenAI(base_url="http://router/v1", api_key="k", http_client=transport) as client:
        yield client


def resent(client: OpenAI, server: Server, turn: Turn) -> Json:
    """The last assistant's message as the server gets it back."""
    for call in reversed(turn.calls):
        turn.add_tool_result(call.id, "r")
    client.chat.completions.create(model="m", messages=turn.messages)
    results = len(turn._asking().calls)
    assert [message["role"] for message in server.sent[-results:] if results] == ["tool"] * results
    return server.sent[len(ASK)]


def new_turn() -> Turn:
    return antiphon.conversation().turn(ASK)


def same(one: object, other: object) -> bool:
    """Equal down to the type of each number."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
DECLARED = {
    "annotations",
    "audio",
    "content",
    "function",
    "function_call",
    "id",
    "index",
    "refusal",
    "role",
    "tool_calls",
    "type",
}
NAMES = TEXT | st.sampled_from(["copy", "json", "model_dump", "parsed", "parsed_arguments", "schema", "self"])
UNKNOWN = st.dictionaries(NAMES.filter(lambda name: name not in DECLARED), VALUES, max_size=3)
"""Fields that openai does not know."""
ARGUMENTS = TEXT | st.builds(
    lambda value, indent, escaped: json.dumps(value, indent=indent, ensure_ascii=escaped),
    st.dictionaries(TEXT, VALUES, max_size=3),
    st.sampled_from([None, 0, 3]),
    st.booleans(),
)


PARTS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}), max_size=2)
"""What openai's models do not expect in a reply."""


@st.composite
def messages(draw: st.DrawFn) -> Json:
    """Assistant's messages as they come over the wire, whole."""
    message: Json = {"role": "assistant", "content": draw(st.none() | TEXT | PARTS)}
    message |= draw(
        st.fixed_dictionaries({}, optional={"refusal": st.none() | TEXT, "function_call": st.none()})
    )
    message |= draw(st.fixed_dictionaries({}, optional={"reasoning": TEXT, "reasoning_content": TEXT}))
    calls: list[Json] = []
    for place in range(draw(st.integers(0, 3))):
        function = {"name": draw(TEXT), "arguments": draw(ARGUMENTS), **draw(UNKNOWN)}
        calls.append({"id": f"c{place}", "type": "function", "function": function, **draw(UNKNOWN)})
    return message | draw(UNKNOWN) | ({"tool_calls": calls} if calls else {})


@given(messages(), st.data())
def test_whole_reply_goes_back_as_it_came(
    server: Server, client: OpenAI, message: Json, data: st.DataObject
) -> None:
    server.message = message
    turn = new_turn()
    turn.add_reply(client.chat.completions.create(model="m", messages=turn.messages))
    for call in data.draw(st.permutations(turn.calls)):
        turn.add_tool_result(call.id, call.id)

    sent = turn.messages
    assert same(sent[1], message)
    assert [each["tool_call_id"] for each in sent[2:]] == [c["id"] for c in message.get("tool_calls", ())]
    assert all(each["content"] == each["tool_call_id"] for each in sent[2:])
    assert same(resent(client, server, turn), message)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Json], Json]:
    """A stream's deltas, and the message that they make up."""
    message = draw(messages())
    calls = message.get("tool_calls", [])
    opening = "" if isinstance(message["content"], str) else None
    deltas: list[Json] = [{"role": "assistant", "content": opening}]

    def pieces(text: str) -> list[str]:
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
        return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    for name, value in message.items():
        if name not in ("role", "tool_calls"):
            parts = pieces(value) if isinstance(value, str) else [value]
            deltas += [{name: part} for part in parts]
    for index, call in enumerate(calls):
        function = {**call["function"], "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, **call, "function": function}]})
    for index, call in enumerate(calls):
        for part in pieces(call["function"]["arguments"]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    return deltas, message


@given(streams())
def test_streamed_reply_goes_back_as_it_came(
    server: Server, client: OpenAI, stream: tuple[list[Json], Json]
) -> None:
    server.deltas, message = stream
    turn = new_turn()
    chunks = client.chat.completions.create(model="m", messages=turn.messages, stream=True)
    assert len(list(turn.read(chunks))) == len(server.deltas) + 1
    server.message = {"role": "assistant", "content": ""}
    assert same(resent(client, server, turn), message)


ASKING: Json = {
    "role": "assistant",
    "content": None,
    "refusal": None,
    "annotations": None,
    "audio": None,
    "function_call": None,
    "reasoning": " é\n",
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "Item", "arguments": '{ "item":"\\u00e9"}'}},
        {"id": "c2", "type": "function", "function": {"name": "Item", "arguments": '{"item" : ""}', "x": 1}},
    ],
}
"""As vLLM words it, nulls included."""
DELTAS: list[Json] = [
    {"role": "assistant", "content": ""},
    {"reasoning": " é"},
    {"reasoning": "\n"},
    {"tool_calls": [{"index": 0, **ASKING["tool_calls"][0]}]},
    {"tool_calls": [{"index": 1, **ASKING["tool_calls"][1]}]},
]
STREAMED: Json = {
    "role": "assistant",
    "content": "",
    "reasoning": " é\n",
    "tool_calls": ASKING["tool_calls"],
}
TOOLS: Any = [pydantic_function_tool(Item)]


def test_message_of_a_reply_will_do(server: Server, client: OpenAI) -> None:
    server.message = ASKING
    turn = new_turn()
    turn.add_reply(client.chat.completions.create(model="m", messages=ASK).choices[0].message)
    assert same(resent(client, server, turn), ASKING)


def test_stored_models_are_messages_too(server: Server, client: OpenAI) -> None:
    server.message = ASKING
    message = client.chat.completions.create(model="m", messages=ASK).choices[0].message
    asked = message.tool_calls or []
    turn = antiphon.conversation().turn([*ASK, message])
    assert same(resent(client, server, turn), ASKING)
    turn = antiphon.conversation().turn([*ASK, {"role": "assistant", "content": None, "tool_calls": asked}])
    assert same(resent(client, server, turn)["tool_calls"], ASKING["tool_calls"])


@pytest.mark.parametrize("message", [ASKING, {"role": "assistant", "content": '{"item":  "é"}', "parsed": 1}])
def test_reply_that_was_parsed_goes_back_without_what_the_parser_added(
    server: Server, client: OpenAI, message: Json
) -> None:
    server.message = message
    turn = new_turn()
    reply = client.chat.completions.parse(model="m", messages=ASK, tools=TOOLS, response_format=Item)
    made = [call.function.parsed_arguments for call in reply.choices[0].message.tool_calls or ()]
    assert made or reply.choices[0].message.parsed == Item(item="é")
    turn.add_reply(reply)
    assert same(resent(client, server, turn), {k: v for k, v in message.items() if k != "parsed"})


def test_field_named_parsed_that_came_goes_back(server: Server, client: OpenAI) -> None:
    server.message = {"role": "assistant", "content": "a", "parsed": {"a": 1}}
    turn = new_turn()
    turn.add_reply(client.chat.completions.create(model="m", messages=ASK))
    assert same(resent(client, server, turn), server.message)


def test_events_of_a_stream_manager_are_read_like_chunks(server: Server, client: OpenAI) -> None:
    server.deltas, turn = DELTAS, new_turn()
    with client.chat.completions.stream(model="m", messages=ASK, tools=TOOLS) as stream:
        kinds = {event.type for event in turn.read(stream)}
        final = stream.get_final_completion()
    assert {"chunk", "tool_calls.function.arguments.delta"} <= kinds
    assert final.choices[0].message.tool_calls
    assert same(resent(client, server, turn), STREAMED)


def test_final_completion_of_a_stream_manager_goes_back_without_what_it_added(
    server: Server, client: OpenAI
) -> None:
    server.deltas, turn = DELTAS, new_turn()
    with client.chat.completions.stream(model="m", messages=ASK, tools=TOOLS) as stream:
        turn.add_reply(stream.get_final_completion())
    sent = resent(client, server, turn)
    assert same({name: value for name, value in sent.items() if value is not None}, STREAMED)


def test_raw_response_is_an_error_that_says_to_parse_it(server: Server, client: OpenAI) -> None:
    server.message, turn = ASKING, new_turn()
    raw = client.chat.completions.with_raw_response.create(model="m", messages=ASK)
    with pytest.raises(TurnError, match=r"a LegacyAPIResponse is no reply.*of a raw response parse\(\)"):
        turn.add_reply(raw)
    turn.add_reply(raw.parse())
    assert same(resent(client, server, turn), ASKING)


async def test_async_stream_goes_back_as_it_came(server: Server, client: OpenAI) -> None:
    server.deltas, turn = DELTAS, new_turn()
    transport: Any = httpx.AsyncClient(transport=httpx.MockTransport(server.aserve), trust_env=False)
    async with AsyncOpenAI(base_url="http://router/v1", api_key="k", http_client=transport) as aclient:
        chunks = await aclient.chat.completions.create(model="m", messages=turn.messages, stream=True)
        assert len([chunk async for chunk in turn.aread(chunks)]) == len(DELTAS) + 1
    assert same(resent(client, server, turn), STREAMED)
