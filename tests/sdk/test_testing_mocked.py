"""respx for openai of either generation: nothing leaves this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import respx
from openai import APIConnectionError, APITimeoutError, AsyncOpenAI, OpenAI
from respx.mocks import HTTPCoreMocker, Mocker
from respx.models import AllMockedAssertionError

import antiphon
from antiphon.testing import FakeRouter, assert_same_conversation, mocked
from doubles.loopback import escapes, loopback_only

__all__ = ["escapes", "loopback_only"]

pytestmark = pytest.mark.usefixtures("loopback_only")

URL = "http://router.invalid/v1"
CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
MESSAGE = {"role": "assistant", "content": "ok"}
REPLY: Any = {
    "id": "1",
    "created": 1,
    "model": "m",
    "object": "chat.completion",
    "choices": [{"index": 0, "finish_reason": "stop", "message": MESSAGE}],
}
STREAM = 'data: {"id": "1", "choices": [{"index": 0, "delta": {"content": "ok"}}]}\n\ndata: [DONE]\n\n'
UNMOCKED = (AllMockedAssertionError, APIConnectionError)
"""openai 2 makes a connection error of any, openai 3 of httpx2's own only."""

LIBRARIES = ["httpx", "httpx2"]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.001)


@pytest.fixture(params=[None, *LIBRARIES])
def transport(request: pytest.FixtureRequest) -> Any:
    """openai's own choice, or a library by name."""
    return pytest.importorskip(request.param) if request.param else None


@pytest.fixture
def client(transport: Any) -> Iterator[OpenAI]:
    given: Any = {"http_client": transport.Client()} if transport else {}
    with OpenAI(base_url=URL, api_key="k", **given) as client:
        yield client


def aclient(transport: Any) -> AsyncOpenAI:
    given: Any = {"http_client": transport.AsyncClient()} if transport else {}
    return AsyncOpenAI(base_url=URL, api_key="k", **given)


def test_call_is_intercepted(client: OpenAI) -> None:
    with mocked(base_url=URL) as respx_mock, antiphon.conversation("c") as conversation:
        route = respx_mock.post("/chat/completions").respond(json=REPLY)
        headers = antiphon.stamp(conversation).headers
        completion = client.chat.completions.create(**CHAT, extra_headers=headers)
        assert completion.choices[0].message.content == "ok"
        assert assert_same_conversation(route.calls) == "c"


async def test_async_call_is_intercepted(transport: Any) -> None:
    async with aclient(transport) as client, mocked(base_url=URL) as respx_mock:
        respx_mock.post("/chat/completions").respond(json=REPLY)
        assert (await client.chat.completions.create(**CHAT)).choices[0].message.content == "ok"


async def test_streams_are_intercepted(client: OpenAI, transport: Any) -> None:
    with mocked(base_url=URL) as respx_mock:
        respx_mock.post("/chat/completions").respond(text=STREAM, content_type="text/event-stream")
        [chunk] = client.chat.completions.create(**CHAT, stream=True)
        assert chunk.choices[0].delta.content == "ok"
        async with aclient(transport) as other:
            [chunk] = [each async for each in await other.chat.completions.create(**CHAT, stream=True)]
        assert chunk.choices[0].delta.content == "ok"


def test_unmocked_call_is_an_error_even_where_the_program_swallows_it(client: OpenAI) -> None:
    router = mocked().__enter__()
    with pytest.raises(UNMOCKED) as caught:
        client.chat.completions.create(**CHAT)
    assert isinstance(caught.value.__cause__ or caught.value, AllMockedAssertionError)
    with pytest.raises(AllMockedAssertionError, match=f"nothing mocks POST {URL}/chat/completions: add"):
        router.stop()


async def test_unmocked_async_call_is_an_error_too(transport: Any) -> None:
    router = mocked().__enter__()
    async with aclient(transport) as client:
        with pytest.raises(UNMOCKED):
            await client.chat.completions.create(**CHAT)
    with pytest.raises(AllMockedAssertionError, match="nothing mocks"):
        router.stop()


def test_error_of_the_block_is_not_hidden_by_what_was_not_mocked(client: OpenAI) -> None:
    with pytest.raises(UNMOCKED), mocked():
        client.chat.completions.create(**CHAT)


def test_route_that_was_not_called_is_an_error_unless_that_is_allowed() -> None:
    router = mocked().__enter__()
    router.get(URL)
    with pytest.raises(AssertionError, match="not called"):
        router.stop()
    with mocked(assert_all_called=False) as allowing:
        allowing.get(URL)


def test_timeouts_are_those_of_the_clients_library(client: OpenAI) -> None:
    with mocked(base_url=URL) as respx_mock:
        respx_mock.post("/chat/completions").mock(side_effect=httpx.ReadTimeout)
        with pytest.raises(APITimeoutError):
            client.with_options(max_retries=0).chat.completions.create(**CHAT)


async def test_async_timeouts_are_too(transport: Any) -> None:
    async with aclient(transport) as client:
        with mocked(base_url=URL) as respx_mock:
            respx_mock.post("/chat/completions").mock(side_effect=httpx.ReadTimeout)
            with pytest.raises(APITimeoutError):
                await client.with_options(max_retries=0).chat.completions.create(**CHAT)


@pytest.mark.parametrize("name", LIBRARIES)
async def test_errors_are_those_of_the_library(name: str) -> None:
    library = pytest.importorskip(name)
    with mocked(base_url=URL) as respx_mock:
        respx_mock.get("/").mock(side_effect=httpx.ReadTimeout)
        with pytest.raises(library.ReadTimeout):
            library.get(URL)
        async with library.AsyncClient() as client:
            with pytest.raises(library.ReadTimeout):
                await client.get(URL)


@pytest.mark.parametrize("name", LIBRARIES)
def test_requests_go_out_again_afterwards(name: str) -> None:
    library = pytest.importorskip(name)
    with FakeRouter() as router:
        with mocked(assert_all_called=False):
            pass
        assert library.get(f"{router.base_url}/models").status_code == 200


def test_routes_of_an_outer_mock_count(client: OpenAI) -> None:
    with mocked() as outer, mocked() as inner, respx.mock(assert_all_called=False):
        outer.post(f"{URL}/chat/completions").respond(json=REPLY)
        inner.post(f"{URL}/completions").respond(json={"choices": []})
        client.chat.completions.create(**CHAT)
        client.completions.create(model="m", prompt="hello")


def test_unmocked_call_is_told_by_the_innermost_mock(client: OpenAI) -> None:
    with mocked():
        inner = mocked().__enter__()
        with pytest.raises(UNMOCKED):
            client.chat.completions.create(**CHAT)
        with pytest.raises(AllMockedAssertionError, match="nothing mocks"):
            inner.stop()


@mocked
def test_functions_are_decorated(respx_mock: respx.MockRouter) -> None:
    respx_mock.get(URL).respond(204)
    assert httpx.get(URL).status_code == 204


@mocked(base_url=URL, assert_all_called=False)
async def test_async_functions_are_decorated_with_options(respx_mock: respx.MockRouter) -> None:
    respx_mock.get("/").respond(204)
    async with httpx.AsyncClient() as client:
        assert (await client.get(URL)).status_code == 204


def test_routes_and_calls_are_forgotten_at_the_end() -> None:
    router = mocked()
    with router:
        router.get(URL)
        httpx.get(URL)
    assert (len(router.routes), len(router.calls)) == (0, 0)
    router.start()
    router.get(URL)
    httpx.get(URL)
    router.stop(clear=False, reset=False)
    assert (len(router.routes), len(router.calls)) == (1, 1)


def test_respx_knows_httpx2_by_a_name_from_then_on() -> None:
    httpx2 = pytest.importorskip("httpx2")
    with mocked():
        pass
    with respx.mock(using="httpcore2") as respx_mock:
        respx_mock.get(URL).respond(204)
        assert httpx2.get(URL).status_code == 204


def test_httpx_alone_is_mocked_where_httpx2_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpcore2", None)
    with mocked() as respx_mock:
        respx_mock.get(URL).respond(204)
        assert httpx.get(URL).status_code == 204
        assert [mocker for mocker in Mocker.registry.values() if mocker.routers] == [HTTPCoreMocker]


def test_missing_respx_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "respx" or name.startswith("respx.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "antiphon.testing._respx", raising=False)
    with pytest.raises(antiphon.MissingDependencyError, match=r"pip install 'antiphon\[testing\]'"):
        mocked()
