"""Every kind of client x every form of a model call, on a real socket."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pydantic
import pytest
from openai import APIResponse, AsyncAPIResponse, AsyncAzureOpenAI, AsyncOpenAI, AzureOpenAI, OpenAI
from openai._legacy_response import LegacyAPIResponse

import antiphon
import antiphon_openai
from antiphon._observe import Exchange
from antiphon.testing import FakeRouter
from antiphon_openai import _reply

OWN: Any = {"extra_headers": {"X-Mine": "1"}, "extra_body": {"cache_salt": "s"}}
CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
TEXT: Any = {"model": "m", "prompt": "hello"}
RESPONSE: Any = {"model": "m", "input": "hello"}
POSTED: Any = {
    "cast_to": object,
    "options": {"headers": OWN["extra_headers"], "extra_json": OWN["extra_body"]},
}


class City(pydantic.BaseModel):
    city: str


class Mine(OpenAI):
    """A user's own client, with a hook of its own."""

    def _prepare_options(self, options: Any) -> Any:
        options = super()._prepare_options(options)
        options.headers = {**options.headers, "X-Of": "mine"}
        return options


class AsyncMine(AsyncOpenAI):
    async def _prepare_options(self, options: Any) -> Any:
        options = await super()._prepare_options(options)
        options.headers = {**options.headers, "X-Of": "mine"}
        return options


Form = tuple[str, Callable[[Any], Any]]

FORMS: dict[str, Form] = {
    "chat create": ("chat/completions", lambda c: c.chat.completions.create(**CHAT, **OWN)),
    "chat stream": ("chat/completions", lambda c: c.chat.completions.create(**CHAT, **OWN, stream=True)),
    "chat .stream()": ("chat/completions", lambda c: c.chat.completions.stream(**CHAT, **OWN)),
    "chat .parse": (
        "chat/completions",
        lambda c: c.chat.completions.parse(**CHAT, **OWN, response_format=City),
    ),
    "chat raw": ("chat/completions", lambda c: c.chat.completions.with_raw_response.create(**CHAT, **OWN)),
    "chat raw stream": (
        "chat/completions",
        lambda c: c.chat.completions.with_raw_response.create(**CHAT, **OWN, stream=True),
    ),
    "chat streaming raw": (
        "chat/completions",
        lambda c: c.chat.completions.with_streaming_response.create(**CHAT, **OWN),
    ),
    "chat streaming raw stream": (
        "chat/completions",
        lambda c: c.chat.completions.with_streaming_response.create(**CHAT, **OWN, stream=True),
    ),
    "chat of the raw client": (
        "chat/completions",
        lambda c: c.with_raw_response.chat.completions.create(**CHAT, **OWN),
    ),
    "beta chat .parse": (
        "chat/completions",
        lambda c: c.beta.chat.completions.parse(**CHAT, **OWN, response_format=City),
    ),
    "beta chat .stream()": ("chat/completions", lambda c: c.beta.chat.completions.stream(**CHAT, **OWN)),
    "completions create": ("completions", lambda c: c.completions.create(**TEXT, **OWN)),
    "completions stream": ("completions", lambda c: c.completions.create(**TEXT, **OWN, stream=True)),
    "completions raw": ("completions", lambda c: c.completions.with_raw_response.create(**TEXT, **OWN)),
    "completions streaming raw": (
        "completions",
        lambda c: c.completions.with_streaming_response.create(**TEXT, **OWN),
    ),
    "responses create": ("responses", lambda c: c.responses.create(**RESPONSE, **OWN)),
    "responses stream": ("responses", lambda c: c.responses.create(**RESPONSE, **OWN, stream=True)),
    "responses .stream()": ("responses", lambda c: c.responses.stream(**RESPONSE, **OWN)),
    "responses .parse": ("responses", lambda c: c.responses.parse(**RESPONSE, **OWN, text_format=City)),
    "responses raw": ("responses", lambda c: c.responses.with_raw_response.create(**RESPONSE, **OWN)),
    "responses streaming raw": (
        "responses",
        lambda c: c.responses.with_streaming_response.create(**RESPONSE, **OWN),
    ),
    "beta responses create": ("responses", lambda c: c.beta.responses.create(**RESPONSE, **OWN)),
    "post": ("chat/completions", lambda c: c.post("/chat/completions", body=CHAT, **POSTED)),
    "post messages": ("messages", lambda c: c.post("/messages", body=CHAT, **POSTED)),
    "of with_options": (
        "chat/completions",
        lambda c: c.with_options(timeout=60).chat.completions.create(**CHAT, **OWN),
    ),
    "of copy": ("chat/completions", lambda c: c.copy(max_retries=1).chat.completions.create(**CHAT, **OWN)),
}

Make = Callable[[str], Any]

KINDS: dict[str, Make] = {
    "OpenAI": lambda url: OpenAI(base_url=f"{url}/v1", api_key="k"),
    "OpenAI on httpx": lambda url: on("httpx.Client", url),
    "OpenAI on httpx2": lambda url: on("httpx2.Client", url),
    "OpenAI subclass": lambda url: Mine(base_url=f"{url}/v1", api_key="k"),
    "AzureOpenAI": lambda url: AzureOpenAI(azure_endpoint=url, api_version="1", api_key="k"),
    "AzureOpenAI of a deployment": lambda url: AzureOpenAI(
        azure_endpoint=url, azure_deployment="d", api_version="1", azure_ad_token_provider=lambda: "k"
    ),
}
ASYNC_KINDS: dict[str, Make] = {
    "AsyncOpenAI": lambda url: AsyncOpenAI(base_url=f"{url}/v1", api_key="k"),
    "AsyncOpenAI on httpx": lambda url: on("httpx.AsyncClient", url),
    "AsyncOpenAI on httpx2": lambda url: on("httpx2.AsyncClient", url),
    "AsyncOpenAI subclass": lambda url: AsyncMine(base_url=f"{url}/v1", api_key="k"),
    "AsyncAzureOpenAI": lambda url: AsyncAzureOpenAI(azure_endpoint=url, api_version="1", api_key="k"),
    "AsyncAzureOpenAI of a deployment": lambda url: AsyncAzureOpenAI(
        azure_endpoint=url, azure_deployment="d", api_version="1", azure_ad_token="k"
    ),
}


def on(transport: str, url: str) -> Any:
    module, _, name = transport.partition(".")
    http_client = getattr(pytest.importorskip(module), name)()
    kind: Any = AsyncOpenAI if name.startswith("Async") else OpenAI
    return kind(base_url=f"{url}/v1", api_key="k", http_client=http_client)


def consume(given: Any) -> None:
    """Read what a call gave to its end, as the user would."""
    if hasattr(given, "__next__"):
        for _ in given:
            pass
    elif isinstance(given, APIResponse | LegacyAPIResponse):
        consume(given.parse())
    elif hasattr(given, "__enter__"):
        with given as inside:
            consume(inside)


async def aconsume(given: Any) -> None:
    """:func:`consume` for async clients."""
    if hasattr(given, "__anext__"):
        async for _ in given:
            pass
    elif isinstance(given, AsyncAPIResponse):
        await aconsume(await given.parse())
    elif isinstance(given, LegacyAPIResponse):
        await aconsume(given.parse())
    elif hasattr(given, "__aenter__"):
        async with given as inside:
            await aconsume(inside)
    elif hasattr(given, "__await__"):
        await aconsume(await given)


@pytest.fixture(autouse=True)
def answers_in_json(antiphon_router: FakeRouter) -> None:
    """For ``parse()``."""
    antiphon_router.answer = lambda call: '{"city": "Rome"}'


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.001)


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[Exchange]:
    """What was observed of conversation c."""
    seen: list[Exchange] = []

    def observe(conversation: antiphon.Conversation, exchange: Exchange) -> None:
        assert conversation.id == "c"
        seen.append(exchange)

    monkeypatch.setattr(_reply, "observe", observe)
    return seen


def root_of(antiphon_router: FakeRouter) -> str:
    return antiphon_router.base_url.removesuffix("/v1")


def assert_stamped_and_ended(
    antiphon_router: FakeRouter, client: Any, path: str, exchanges: list[Exchange]
) -> None:
    """Two attempts, each stamped and otherwise as the user wanted it; the second observed; then one end."""
    first, second = antiphon_router.calls()
    for call in (first, second):
        assert call.body["conversation_id"] == "c"
        assert call.headers["x-session-id"] == "c"
        assert call.headers["x-parent-session-id"] == "p"
        assert (call.headers["x-mine"], call.body["cache_salt"]) == ("1", "s")
        assert call.headers.get("x-of") == ("mine" if isinstance(client, Mine | AsyncMine) else None)
    assert len(first.headers["x-turn-id"]) == 36
    assert first.headers["x-turn-id"] == second.headers["x-turn-id"]
    assert [call.headers["x-stainless-retry-count"] for call in (first, second)] == ["0", "1"]
    assert first.path == second.path
    assert first.path.partition("?")[0] in addresses(client, path)

    [exchange] = exchanges
    assert exchange.turn == second.headers["x-turn-id"]
    assert json.loads(exchange.request or b"") == second.body
    assert (exchange.ttft is not None) == second.body.get("stream", False)

    [end] = [request for request in antiphon_router.requests if request.method == "DELETE"]
    assert end.path == ("/openai" if is_azure(client) else "/v1") + "/conversations/c"
    assert "k" in (end.headers.get("api-key"), end.headers.get("authorization", "").removeprefix("Bearer "))
    assert end.headers["x-session-final"] == "true"


def is_azure(client: Any) -> bool:
    return isinstance(client, AzureOpenAI | AsyncAzureOpenAI)


def addresses(client: Any, path: str) -> tuple[str, ...]:
    """Where such a call goes."""
    if not is_azure(client):
        return (f"/v1/{path}",)
    return (f"/openai/deployments/{client._azure_deployment or 'm'}/{path}", f"/openai/{path}")


@pytest.mark.usefixtures("loopback_only")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_call_is_stamped_over_a_retry_and_its_conversation_ended(
    antiphon_router: FakeRouter, exchanges: list[Exchange], kind: str, form: str
) -> None:
    path, call = FORMS[form]
    antiphon_router.statuses.append(500)
    with KINDS[kind](root_of(antiphon_router)) as client:
        antiphon_openai.wrap(client)
        with antiphon.conversation("c", parent="p"):
            consume(call(client))
    assert_stamped_and_ended(antiphon_router, client, path, exchanges)


@pytest.mark.usefixtures("loopback_only")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_async_call_is_stamped_over_a_retry_and_its_conversation_ended(
    antiphon_router: FakeRouter, exchanges: list[Exchange], kind: str, form: str
) -> None:
    path, call = FORMS[form]
    antiphon_router.statuses.append(500)
    async with ASYNC_KINDS[kind](root_of(antiphon_router)) as client:
        antiphon_openai.wrap(client)
        async with antiphon.conversation("c", parent="p"):
            await aconsume(call(client))
    assert_stamped_and_ended(antiphon_router, client, path, exchanges)


@pytest.mark.parametrize("host", ["192.0.2.1", "router.example"])
async def test_guard_of_these_tests_lets_nothing_leave(escapes: list[str], host: str) -> None:
    there: Any = {"base_url": f"http://{host}/v1", "api_key": "k", "max_retries": 0}
    with OpenAI(**there) as client, pytest.raises(openai.APIConnectionError):
        client.chat.completions.create(**CHAT)
    assert escapes == [host]
    async with AsyncOpenAI(**there) as aclient:
        with pytest.raises(openai.APIConnectionError):
            await aclient.chat.completions.create(**CHAT)
    assert escapes == [host, host]
