"""Hooked HTTP clients: sync and async, of httpx and of httpx2."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx
import httpx2
import openai
import pytest

import antiphon
import antiphon_openai
from antiphon import _hook
from antiphon._observe import Exchange
from antiphon.testing import FakeRouter

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
CHAT: Any = BODY
KINDS = [httpx.Client, httpx.AsyncClient, httpx2.Client, httpx2.AsyncClient]


class Sender:
    """A hooked client of any kind, with one blocking face."""

    def __init__(self, kind: Any, **options: Any) -> None:
        self.asynchronous = kind.__name__ == "AsyncClient"
        self.client = antiphon.hook(kind(**options))
        self._runner = asyncio.Runner()

    def post(self, url: str, **request: Any) -> Any:
        return self._run(lambda: self.client.post(url, **request))

    def stream(self, url: str, **request: Any) -> None:
        def read() -> None:
            with self.client.stream("POST", url, **request) as response:
                response.read()

        async def aread() -> None:
            async with self.client.stream("POST", url, **request) as response:
                await response.aread()

        self._run(aread if self.asynchronous else read)

    def close(self) -> None:
        self._run(self.client.aclose if self.asynchronous else self.client.close)
        self._runner.close()

    def _run(self, call: Callable[[], Any]) -> Any:
        return self._runner.run(call(), context=contextvars.copy_context()) if self.asynchronous else call()


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind.__module__}-{kind.__name__}")
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def sender(kind: Any) -> Iterator[Sender]:
    sender = Sender(kind, headers={"X-Tenant": "t", "Authorization": "Bearer k"})
    yield sender
    sender.close()


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Exchange]]:
    seen: list[tuple[str, Exchange]] = []
    monkeypatch.setattr(
        _hook, "observe", lambda conversation, exchange: seen.append((conversation.id, exchange))
    )
    return seen


def answering(kind: Any, answer: Callable[[Any], Any]) -> Sender:
    """A hooked client that reaches no network."""
    return Sender(kind, transport=library(kind).MockTransport(answer), follow_redirects=True)


def library(kind: Any) -> Any:
    return httpx2 if kind.__module__ == "httpx2" else httpx


def stamps(headers: Any) -> dict[str, str]:
    names = ("x-session-id", "x-parent-session-id", "x-turn-id")
    return {name: headers[name] for name in names if name in headers}


def test_hook_returns_the_same_client_and_keeps_its_other_hooks(kind: Any) -> None:
    def mine(message: object) -> None: ...

    client = kind(event_hooks={"request": [mine], "response": [mine]})
    assert antiphon.hook(client) is client
    assert antiphon.hook(client, wire="headers_only") is client
    assert [len(hooks) for hooks in client.event_hooks.values()] == [2, 2]
    assert antiphon.unhook(client) is client
    assert client.event_hooks == {"request": [mine], "response": [mine]}
    assert antiphon.unhook(client) is client


def test_model_call_is_stamped_by_headers_alone_and_its_conversation_ended(
    antiphon_router: FakeRouter, sender: Sender
) -> None:
    with antiphon.conversation("c", parent="p"):
        sender.post(f"{antiphon_router.base_url}/chat/completions", json=BODY)
    [call] = antiphon_router.calls()
    assert call.body == BODY
    assert stamps(call.headers) == {
        "x-session-id": "c",
        "x-parent-session-id": "p",
        "x-turn-id": call.headers["x-turn-id"],
    }
    assert antiphon_router.ends() == ["c"]
    end = antiphon_router.requests[-1].headers
    assert (end["authorization"], end["x-tenant"]) == ("Bearer k", "t")
    assert end["x-session-final"] == "true"


def test_each_call_is_a_turn_of_its_own(antiphon_router: FakeRouter, sender: Sender) -> None:
    with antiphon.conversation("c"):
        for _ in range(3):
            sender.post(f"{antiphon_router.base_url}/chat/completions", json=BODY)
    assert len({call.headers["x-turn-id"] for call in antiphon_router.calls()}) == 3
    assert len(antiphon_router.ends()) == 1


def test_other_requests_and_those_outside_stay_as_they_are(
    antiphon_router: FakeRouter, sender: Sender
) -> None:
    with antiphon.conversation("c"):
        sender.post(f"{antiphon_router.base_url}/embeddings", json=BODY)
    sender.post(f"{antiphon_router.base_url}/chat/completions", json=BODY)
    assert [stamps(call.headers) for call in antiphon_router.requests] == [{}, {}]


def test_unhooked_client_stamps_no_more(antiphon_router: FakeRouter, sender: Sender) -> None:
    antiphon.unhook(sender.client)
    with antiphon.conversation("c"):
        sender.post(f"{antiphon_router.base_url}/chat/completions", json=BODY)
    assert stamps(antiphon_router.calls()[0].headers) == {}


def test_hooking_twice_stamps_once_and_keeps_what_was_bound(
    antiphon_router: FakeRouter, sender: Sender
) -> None:
    antiphon.hook(sender.client, conversation=antiphon.conversation("bound"))
    antiphon.hook(sender.client, wire="dynamo")
    with antiphon.conversation("around"):
        sender.post(f"{antiphon_router.base_url}/chat/completions", json=BODY)
    [call] = antiphon_router.requests
    assert call.headers["x-dynamo-session-id"] == "bound"
    assert "x-session-id" not in call.headers


@pytest.mark.parametrize("name", ["X-Session-ID", "x-session-id", "SESSION-ID"])
def test_conversation_in_a_header_wins(antiphon_router: FakeRouter, sender: Sender, name: str) -> None:
    with antiphon.conversation("c", parent="p"):
        sender.post(f"{antiphon_router.base_url}/chat/completions", json=BODY, headers={name: "mine"})
    [call] = antiphon_router.calls()
    assert call.headers[name.lower()] == "mine"
    assert set(stamps(call.headers)) - {name.lower()} == {"x-turn-id"}


@pytest.mark.parametrize("field", ["conversation_id", "session_id"])
def test_conversation_in_a_json_body_wins(
    antiphon_router: FakeRouter, sender: Sender, field: str, observed: list[Any]
) -> None:
    with antiphon.conversation("c"):
        sender.post(f"{antiphon_router.base_url}/chat/completions", json={**BODY, field: "mine"})
    assert set(stamps(antiphon_router.calls()[0].headers)) == {"x-turn-id"}
    assert observed == []


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"parameters": {"properties": {"session_id": {}}}}]},
        {"messages": [{"content": 'say "conversation_id"'}]},
        ["conversation_id"],
        '{"session_id"',
        "[" * 100_000 + '"session_id"',
        b'\xff"session_id"',
    ],
)
def test_name_elsewhere_in_the_body_is_no_conversation(body: Any) -> None:
    with httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200))) as client:
        antiphon.hook(client)
        content = body if isinstance(body, str | bytes) else json.dumps(body)
        with antiphon.conversation("c", keep=True):
            sent = client.post("http://r/v1/responses", content=content).request
    assert sent.headers["x-session-id"] == "c"


def test_body_that_is_streamed_is_not_read(
    antiphon_router: FakeRouter, observed: list[tuple[str, Exchange]]
) -> None:
    pieces = iter([b'{"session_id": "mine", ', b'"messages": []}'])
    with httpx.Client() as client, antiphon.conversation("c"):
        headers = {"content-type": "application/json"}
        antiphon.hook(client).post(
            f"{antiphon_router.base_url}/chat/completions", content=pieces, headers=headers
        )
    assert antiphon_router.requests[0].headers["x-session-id"] == "c"
    [(_, exchange)] = observed
    assert exchange.request is None


def test_request_with_a_turn_id_is_left_alone(
    antiphon_router: FakeRouter, sender: Sender, observed: list[Any]
) -> None:
    with antiphon.conversation("c"):
        sender.post(f"{antiphon_router.base_url}/chat/completions", json=BODY, headers={"x-TURN-id": "mine"})
    assert stamps(antiphon_router.requests[0].headers) == {"x-turn-id": "mine"}
    assert observed == antiphon_router.ends() == []


def test_hooked_client_inside_a_wrapped_one_adds_nothing(
    antiphon_router: FakeRouter, observed: list[Any]
) -> None:
    transport = antiphon.hook(openai.DefaultHttpxClient())
    with openai.OpenAI(base_url=antiphon_router.base_url, api_key="k", http_client=transport) as client:
        antiphon_openai.wrap(client)
        with antiphon.conversation("c"):
            client.chat.completions.create(**CHAT)
    [call] = antiphon_router.calls()
    assert call.body["conversation_id"] == call.headers["x-session-id"] == "c"
    assert observed == []
    assert antiphon_router.ends() == ["c"]


def test_hooks_outlive_their_client_in_another_one(antiphon_router: FakeRouter) -> None:
    hooks = antiphon.hook(httpx.Client()).event_hooks
    gc.collect()
    with httpx.Client(event_hooks=hooks) as client, antiphon.conversation("c"):
        client.post(f"{antiphon_router.base_url}/chat/completions", json=BODY)
    assert antiphon_router.calls()[0].headers["x-session-id"] == "c"


def test_hook_of_the_caller_runs_first(antiphon_router: FakeRouter) -> None:
    def mine(request: httpx.Request) -> None:
        request.headers["X-Session-ID"] = "mine"

    with httpx.Client(event_hooks={"request": [mine]}) as client, antiphon.conversation("c"):
        antiphon.hook(client).post(f"{antiphon_router.base_url}/chat/completions", json=BODY)
    assert antiphon_router.requests[0].headers["x-session-id"] == "mine"


def test_vendors_get_nothing_unless_a_wire_is_given(kind: Any) -> None:
    seen: list[Any] = []

    def answer(request: Any) -> Any:
        seen.append(request)
        return library(kind).Response(200)

    sender = answering(kind, answer)
    with antiphon.conversation("c"):
        sender.post("https://api.openai.com/v1/chat/completions", json=BODY)
        antiphon.hook(sender.client, wire="default")
        sender.post("https://api.openai.com/v1/chat/completions", json=BODY)
    sender.close()
    assert [(request.method, "x-session-id" in request.headers) for request in seen] == [
        ("POST", False),
        ("POST", True),
    ]


def test_retries_of_openai_carry_the_same_turn_id(antiphon_router: FakeRouter) -> None:
    antiphon_router.statuses.extend([500, 500])
    transport = antiphon.hook(openai.DefaultHttpxClient())
    client = openai.OpenAI(
        base_url=antiphon_router.base_url, api_key="k", http_client=transport, max_retries=2
    )
    with client, antiphon.conversation("c"):
        client.chat.completions.create(**CHAT)
        client.chat.completions.create(**CHAT)
    turns = [call.headers["x-turn-id"] for call in antiphon_router.calls()]
    assert turns[0] == turns[1] == turns[2] != turns[3]
    assert antiphon_router.requests[-1].headers["authorization"] == "Bearer k"


async def test_async_retries_carry_the_turn_id_of_their_own_task(antiphon_router: FakeRouter) -> None:
    antiphon_router.statuses.extend([500, 500])
    transport = antiphon.hook(openai.DefaultAsyncHttpxClient())
    client = openai.AsyncOpenAI(
        base_url=antiphon_router.base_url, api_key="k", http_client=transport, max_retries=2
    )

    async def agent(name: str) -> None:
        async with antiphon.conversation(name):
            await client.chat.completions.create(**CHAT)

    async with client:
        await asyncio.gather(agent("a"), agent("b"))
    calls = antiphon_router.calls()
    assert len(calls) == 4
    assert len({(call.headers["x-session-id"], call.headers["x-turn-id"]) for call in calls}) == 2


def test_retry_of_what_was_not_stamped_here_is_a_turn_of_its_own(
    antiphon_router: FakeRouter, sender: Sender
) -> None:
    retry = {"X-Stainless-Retry-Count": "1"}
    for name in "ab":
        with antiphon.conversation(name):
            sender.post(f"{antiphon_router.base_url}/chat/completions", json=BODY, headers=retry)
            sender.post(f"{antiphon_router.base_url}/responses", json=BODY, headers=retry)
    assert len({call.headers["x-turn-id"] for call in antiphon_router.calls()}) == 4


def test_idempotency_key_is_the_turn_id(antiphon_router: FakeRouter, sender: Sender) -> None:
    with antiphon.conversation("c"):
        for key in ("mine", "stainless-python-retry-1234"):
            url = f"{antiphon_router.base_url}/chat/completions"
            sender.post(url, json=BODY, headers={"Idempotency-Key": key})
    assert [call.headers["x-turn-id"] for call in antiphon_router.calls()] == ["mine", "1234"]


def test_redirect_repeats_the_turn_and_is_observed_once(
    kind: Any, observed: list[tuple[str, Exchange]]
) -> None:
    seen: list[Any] = []

    def answer(request: Any) -> Any:
        seen.append(request)
        moved = request.url.host == "old"
        headers = {"location": "http://new/v1/chat/completions"}
        return library(kind).Response(307 if moved else 200, headers=headers if moved else {})

    sender = answering(kind, answer)
    with antiphon.conversation("c", keep=True):
        sender.post("http://old/v1/chat/completions", json=BODY)
    sender.close()
    assert [request.url.host for request in seen] == ["old", "new"]
    assert stamps(seen[0].headers) == stamps(seen[1].headers)
    assert [(name, exchange.turn) for name, exchange in observed] == [("c", seen[0].headers["x-turn-id"])]


def test_authentication_repeats_the_turn_and_is_observed_once(
    kind: Any, observed: list[tuple[str, Exchange]]
) -> None:
    turns: list[str] = []

    def answer(request: Any) -> Any:
        turns.append(request.headers["x-turn-id"])
        challenge = {"www-authenticate": 'Digest realm="r", nonce="n", qop="auth"'}
        refused = "authorization" not in request.headers
        return library(kind).Response(401 if refused else 200, headers=challenge if refused else {})

    sender = answering(kind, answer)
    with antiphon.conversation("c", keep=True):
        auth = library(kind).DigestAuth("user", "password")
        assert sender.post("http://r/v1/chat/completions", json=BODY, auth=auth).status_code == 200
    sender.close()
    assert len(turns) == 2
    assert len(set(turns)) == len(observed) == 1


def test_whole_reply_is_observed(
    antiphon_router: FakeRouter, sender: Sender, observed: list[tuple[str, Exchange]]
) -> None:
    with antiphon.conversation("c"):
        sender.post(f"{antiphon_router.base_url}/chat/completions", json=BODY)
    [(name, exchange)] = observed
    assert (name, exchange.turn) == ("c", antiphon_router.calls()[0].headers["x-turn-id"])
    assert exchange.headers["content-type"] == "application/json"
    assert json.loads(exchange.request or b"") == BODY
    assert (exchange.reply, exchange.ttft) == (None, None)


def test_stream_is_observed_with_its_ttft(
    antiphon_router: FakeRouter, sender: Sender, observed: list[tuple[str, Exchange]]
) -> None:
    with antiphon.conversation("c"):
        sender.stream(f"{antiphon_router.base_url}/chat/completions", json={**BODY, "stream": True})
    [(_, exchange)] = observed
    assert exchange.ttft is not None
    assert 0 < exchange.ttft < 60


def test_failure_is_not_observed(antiphon_router: FakeRouter, sender: Sender, observed: list[Any]) -> None:
    antiphon_router.statuses.append(500)
    with antiphon.conversation("c"):
        sender.post(f"{antiphon_router.base_url}/chat/completions", json=BODY)
    assert observed == []


def test_wire_without_a_turn_header_works(antiphon_router: FakeRouter, sender: Sender) -> None:
    antiphon.hook(sender.client, wire=antiphon.Wire(conversation_header="X-SMG-Routing-Key"))
    with antiphon.conversation("c"):
        sender.post(f"{antiphon_router.base_url}/chat/completions", json=BODY)
    [call] = antiphon_router.requests
    assert call.headers["x-smg-routing-key"] == "c"
    assert stamps(call.headers) == {}


def test_wire_that_names_by_a_body_field_alone_is_refused() -> None:
    with httpx.Client() as client:
        with pytest.raises(antiphon.WireError, match="has no conversation_header"):
            antiphon.hook(client, wire=antiphon.Wire(conversation_field="session_id"))
        with pytest.raises(antiphon.WireError, match="there is no wire 'nonsense'"):
            antiphon.hook(client, wire="nonsense")
        assert client.event_hooks == {"request": [], "response": []}


@pytest.mark.parametrize("function", [antiphon.hook, antiphon.unhook])
def test_other_objects_are_refused_by_name(function: Any) -> None:
    with pytest.raises(antiphon.ClientError, match="cannot hook a dict: pass the client of httpx or httpx2"):
        function({})
    client = openai.OpenAI(base_url="http://localhost:1/v1", api_key="k")
    with client, pytest.raises(antiphon.ClientError, match=r"cannot hook a OpenAI: .* antiphon_openai\.wrap"):
        function(cast("Any", client))
