"""The fake router as a server: what it records, says, and refuses."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, RemoteDisconnected
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, InternalServerError, OpenAI

import antiphon
from antiphon.testing import FakeRouter, Recorded, tool_call

USER: Any = [{"role": "user", "content": "hello"}]
CHAT: Any = {"model": "m", "messages": USER}


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    with FakeRouter() as router:
        yield router


@pytest.fixture
def client(router: FakeRouter) -> Iterator[OpenAI]:
    with OpenAI(base_url=router.base_url, api_key="k") as client:
        yield client


def test_requests_are_recorded_with_whose_they_are_and_what_was_answered(router: FakeRouter) -> None:
    headers = {"X-Session-ID": "c", "X-Turn-ID": "t", "X-Parent-Session-ID": "p"}
    httpx.post(f"{router.base_url}/chat/completions?a=b", json=CHAT, headers=headers)
    [call] = router.requests
    assert (call.method, call.path, call.body) == ("POST", "/v1/chat/completions?a=b", CHAT)
    assert (call.conversation, call.turn, call.parent, call.status) == ("c", "t", "p", 200)
    assert call.headers["x-session-id"] == "c"
    assert call.answer == [{"role": "assistant", "content": "ok"}]
    with pytest.raises(AttributeError):
        call.body = None  # type: ignore[misc]


def test_calls_ends_and_conversations_are_told_apart(router: FakeRouter) -> None:
    for id in ("a", "b/c", "a", None):  # noqa: A001
        named = {"conversation_id": id} if id else {}
        httpx.post(f"{router.base_url}/chat/completions", json=CHAT | named)
    httpx.post(f"{router.base_url}/embeddings", json={"input": "hello", "conversation_id": "a"})
    httpx.delete(f"{router.base_url}/conversations/b%2Fc")
    httpx.delete(f"{router.base_url}/conversations/")

    first, second, third, fourth = router.calls()
    assert router.conversations() == {"a": [first, third], "b/c": [second], None: [fourth]}
    assert router.ends() == ["b/c"]
    assert len(router.requests) == 7


def test_replies_are_said_in_their_order_then_what_answer_says(router: FakeRouter, client: OpenAI) -> None:
    router.answer = lambda call: f"You said {call.body['messages'][-1]['content']}."
    router.replies("one", {"content": "", "reasoning_content": "hm"})
    router.replies(tool_call("stock", item="hinges"))
    messages: list[Any] = [client.chat.completions.create(**CHAT).choices[0].message for _ in range(4)]

    assert [message.content for message in messages] == ["one", "", None, "You said hello."]
    assert messages[1].reasoning_content == "hm"
    [call] = messages[2].tool_calls
    assert (call.function.name, call.function.arguments) == ("stock", '{"item" : "hinges"}')
    assert router.calls()[1].answer == [{"role": "assistant", "content": "", "reasoning_content": "hm"}]


def test_several_calls_make_one_message(router: FakeRouter, client: OpenAI) -> None:
    router.replies([tool_call("stock", item="hinges"), {**tool_call("price"), "content": "Wait."}])
    choice: Any = client.chat.completions.create(**CHAT).choices[0]
    first, second = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert first.id != second.id
    assert choice.message.content is None


def test_whole_completion_is_said_as_it_is(router: FakeRouter, client: OpenAI) -> None:
    choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "cut o"}}
    router.replies({"choices": [choice], "system_fingerprint": "f"})
    completion = client.chat.completions.create(**CHAT)
    assert completion.system_fingerprint == "f"
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None


def test_scripted_failures_come_first_and_are_retried_at_once(router: FakeRouter, client: OpenAI) -> None:
    router.fail()
    router.fail(429)
    client.chat.completions.create(**CHAT)
    assert [call.status for call in router.calls()] == [500, 429, 200]
    router.fail(503)
    assert httpx.get(router.base_url).headers["retry-after-ms"] == "1"


def test_error_of_the_answer_reaches_the_client_once_and_then_the_test() -> None:
    router = FakeRouter().start()

    def answer(call: Recorded) -> str:
        raise AssertionError(f"not this model: {call.body['model']}")

    router.answer = answer
    client = OpenAI(base_url=router.base_url, api_key="k")
    with client, pytest.raises(InternalServerError, match="not this model: m"):
        client.chat.completions.create(**CHAT)
    with pytest.raises(AssertionError, match="not this model: m"):
        router.close()
    assert [call.status for call in router.calls()] == [500]
    router.close()


def test_what_cannot_be_said_is_an_error_of_the_test() -> None:
    router = FakeRouter().start()
    router.replies([])
    assert httpx.post(f"{router.base_url}/chat/completions", json=CHAT).status_code == 500
    with pytest.raises(TypeError, match=r"cannot say \[\]: pass text"):
        router.close()


def test_there_is_no_address_before_the_start() -> None:
    with pytest.raises(RuntimeError, match="no address yet"):
        _ = FakeRouter().base_url


def test_requests_may_be_forgotten_while_one_is_answered(router: FakeRouter) -> None:
    def answer(call: Recorded) -> str:
        router.requests.clear()
        return "ok"

    router.answer = answer
    assert httpx.post(f"{router.base_url}/chat/completions", json=CHAT).status_code == 200
    assert router.requests == []


def test_waiting_ends_when_it_came_or_when_time_is_up(router: FakeRouter) -> None:
    url = f"{router.base_url}/conversations/c"
    thread = threading.Thread(target=httpx.delete, args=(url,))
    thread.start()
    assert router.wait_until(lambda: router.ends() == ["c"], 30)
    assert not router.wait_until(lambda: router.ends() == [], 0.01)
    thread.join()


def test_clients_that_leave_and_bodies_that_are_no_json_are_no_matter(
    router: FakeRouter, capfd: pytest.CaptureFixture[str]
) -> None:
    router.replies("long" * 100_000)
    url = f"{router.base_url}/chat/completions"
    with httpx.stream("POST", url, json={**CHAT, "stream": True}) as reply:
        next(reply.iter_bytes(100))
    assert httpx.post(url, content=b"{", headers={"content-type": "application/json"}).status_code == 200
    assert router.calls()[1].body == b"{"
    assert capfd.readouterr().err == ""


def test_what_is_no_http_is_an_error_of_the_test() -> None:
    router = FakeRouter().start()
    connection = HTTPConnection(router.base_url.split("/")[2], timeout=30)
    connection.putrequest("POST", "/v1/chat/completions")
    connection.putheader("Content-Length", "many")
    connection.endheaders()
    with contextlib.closing(connection), pytest.raises(RemoteDisconnected):
        connection.getresponse()
    with pytest.raises(ValueError, match="invalid literal"):
        router.close()


def test_models_and_embeddings_are_served(router: FakeRouter, client: OpenAI) -> None:
    router.model = "own"
    assert [model.id for model in client.models.list()] == ["own"]
    assert client.models.retrieve("any/name").id == "any/name"
    one, other = client.embeddings.create(model="e", input=["a", "b"]).data
    again = client.embeddings.create(model="e", input="a").data[0]
    assert len(one.embedding) == 4
    assert one.embedding == again.embedding != other.embedding

    body = {"input": "a", "encoding_format": "base64"}
    packed = httpx.post(f"{router.base_url}/embeddings", json=body).json()["data"][0]["embedding"]
    assert struct.unpack("<4f", base64.b64decode(packed)) == pytest.approx(one.embedding)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/conversations/none"), ("POST", "/conversations/none"), ("POST", "/files"), ("GET", "/files")],
)
def test_what_is_not_there_is_not_found(router: FakeRouter, method: str, path: str) -> None:
    reply = httpx.request(method, router.base_url + path)
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == 404


def test_other_prefixes_are_served_too(router: FakeRouter) -> None:
    root = router.base_url.removesuffix("/v1")
    path = "/openai/deployments/m/chat/completions?api-version=1"
    assert httpx.post(root + path, json=CHAT).status_code == 200


PARTS = [
    {"role": "assistant", "content": "There are 12 é\n", "reasoning_content": "Let me think."},
    tool_call("stock", item="hinges"),
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            tool_call("a", item="ü" * 9)["tool_calls"][0],
            {"id": "2", "type": "custom", "custom": {"name": "b", "input": "x"}},
            {"id": "3", "type": "function", "function": {"name": "c", "arguments": ""}},
        ],
        "vendor": {"nested": [1, 2]},
    },
]


@pytest.mark.parametrize("message", PARTS)
def test_stream_is_the_same_message_in_pieces(
    router: FakeRouter, client: OpenAI, message: dict[str, Any]
) -> None:
    router.replies(message)
    turn = antiphon.conversation("c").turn(USER)
    chunks = list(turn.read(client.chat.completions.create(**CHAT, stream=True)))
    assert turn.messages if not turn.calls else [call.id for call in turn.calls]
    for call in turn.calls:
        turn.add_tool_result(call.id, "12")
    assert turn.messages[1] == message
    assert router.calls()[0].answer == [message]
    assert len(chunks) > 3
    assert all(chunk.choices for chunk in chunks)


def test_text_and_arguments_come_in_several_chunks(router: FakeRouter, client: OpenAI) -> None:
    router.replies(
        {"content": "There are 12.", "reasoning_content": "hm?!"}, tool_call("stock", item="hinges")
    )
    text = list(client.chat.completions.create(**CHAT, stream=True))
    assert [chunk.choices[0].delta.content for chunk in text if chunk.choices[0].delta.content] == [
        "Ther",
        "e ar",
        "e 12",
        ".",
    ]
    calls = list(client.chat.completions.create(**CHAT, stream=True))
    pieces = [call.function for chunk in calls for call in chunk.choices[0].delta.tool_calls or ()]
    assert [piece.name for piece in pieces if piece and piece.name] == ["stock"]
    assert len([piece for piece in pieces if piece and piece.arguments]) == 5


def test_usage_comes_last_where_it_was_asked_for(router: FakeRouter, client: OpenAI) -> None:
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last = client.chat.completions.create(**CHAT, **options)
    assert last.usage is not None
    assert last.usage.prompt_tokens == router.calls()[0].reuse.prompt  # type: ignore[union-attr]
    *_, final = client.completions.create(model="m", prompt="hello", **options)
    assert final.usage.prompt_tokens == 2


async def test_async_clients_are_served(router: FakeRouter) -> None:
    async with AsyncOpenAI(base_url=router.base_url, api_key="k") as client:
        stream = await client.chat.completions.create(**CHAT, stream=True)
        pieces = [chunk.choices[0].delta.content async for chunk in stream]
    assert "".join(piece or "" for piece in pieces) == "ok"


def test_completions_are_text_whole_and_streamed(router: FakeRouter, client: OpenAI) -> None:
    router.replies("There are 12.", {"content": [{"type": "text", "text": "There "}, {"type": "other"}]})
    pieces = client.completions.create(model="m", prompt="hello", stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == "There are 12."
    assert client.completions.create(model="m", prompt="hello").choices[0].text == "There "
    assert router.calls()[1].answer == "There "


@pytest.mark.parametrize("streamed", [False, True])
def test_responses_are_text_and_calls(router: FakeRouter, client: OpenAI, streamed: bool) -> None:
    router.replies("There are 12.", {**tool_call("stock", item="hinges"), "content": "Wait."})
    texts: list[Any] = []
    for _ in range(2):
        if streamed:
            with client.responses.stream(model="m", input="hello") as stream:
                events = list(stream)
                kinds = [event.type for event in events]
                texts.append(stream.get_final_response())
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert kinds[0] == "response.created"
            assert kinds[-1] == "response.completed"
            assert "response.output_text.delta" in kinds
        else:
            texts.append(client.responses.create(model="m", input="hello"))
    first, second = texts
    assert first.output_text == "There are 12."
    assert second.output_text == "Wait."
    call: Any = second.output[1]
    assert (call.type, call.name, call.arguments) == ("function_call", "stock", '{"item" : "hinges"}')
    assert first.id != second.id
    assert first.usage is not None
    assert first.usage.input_tokens == router.calls()[0].reuse.prompt  # type: ignore[union-attr]


def test_message_that_only_calls_has_no_text(router: FakeRouter, client: OpenAI) -> None:
    router.replies(tool_call("stock"), tool_call("stock"))
    assert [item.type for item in client.responses.create(model="m", input="hello").output] == [
        "function_call"
    ]
    [block] = httpx.post(f"{router.base_url}/messages", json=CHAT).json()["content"]
    assert (block["type"], block["input"]) == ("tool_use", {})


def test_silence_is_an_empty_text(router: FakeRouter, client: OpenAI) -> None:
    router.replies("", "")
    assert client.responses.create(model="m", input="hello").output_text == ""
    assert httpx.post(f"{router.base_url}/messages", json=CHAT).json()["content"] == [
        {"type": "text", "text": ""}
    ]


@pytest.mark.parametrize("streamed", [False, True])
def test_messages_are_blocks(router: FakeRouter, streamed: bool) -> None:
    router.replies({**tool_call("stock", item="hinges"), "content": "Wait."})
    reply = httpx.post(f"{router.base_url}/messages", json={**CHAT, "max_tokens": 9, "stream": streamed})
    if not streamed:
        message = reply.json()
    else:
        events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
        message = events[0]["message"]
        for event in events:
            if event["type"] == "content_block_start":
                message["content"].append({**event["content_block"], "pieces": []})
            if event["type"] == "content_block_delta":
                delta = event["delta"]
                message["content"][event["index"]]["pieces"].append(
                    delta.get("text") or delta["partial_json"]
                )
            if event["type"] == "message_delta":
                message.update(event["delta"])
        for block in message["content"]:
            whole = "".join(block.pop("pieces"))
            block.update({"text": whole} if block["type"] == "text" else {"input": json.loads(whole)})
        assert events[-1] == {"type": "message_stop"}
    text, call = message["content"]
    assert (message["role"], message["stop_reason"]) == ("assistant", "tool_use")
    assert text == {"type": "text", "text": "Wait."}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "stock", {"item": "hinges"})
    assert router.calls()[0].answer == [{"role": "assistant", "content": [text, call]}]
