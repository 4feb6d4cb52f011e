"""The wrapped client itself."""

from __future__ import annotations

import asyncio
import runpy
import sys
import threading
from typing import Any, cast

import httpx
import openai
import pytest
from openai import AsyncAzureOpenAI, AsyncOpenAI, AzureOpenAI, OpenAI

import antiphon
import antiphon_openai
from antiphon.testing import FakeRouter

CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def answering(seen: list[httpx.Request]) -> httpx.Client:
    """A transport that reaches no network."""

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"id": "1", "object": "chat.completion", "choices": []})

    return httpx.Client(transport=httpx.MockTransport(answer))


def test_public_names_are_these() -> None:
    assert antiphon_openai.__all__ == ["unwrap", "wrap"]


def test_wrap_returns_the_same_client_of_the_same_type_and_name() -> None:
    with OpenAI(base_url="http://localhost:1/v1", api_key="k") as client:
        agent, shown = client.user_agent, repr(type(client))
        assert antiphon_openai.wrap(client) is client
        assert isinstance(client, OpenAI)
        assert isinstance(client.with_options(timeout=1), OpenAI)
        assert (type(client).__name__, client.user_agent) == ("OpenAI", agent)
        assert repr(type(client)) == shown


def test_wrapping_twice_stamps_once_and_keeps_what_was_bound(antiphon_router: FakeRouter) -> None:
    with OpenAI(base_url=antiphon_router.base_url, api_key="k") as client:
        antiphon_openai.wrap(client, conversation=antiphon.conversation("bound"))
        kind = type(client)
        antiphon_openai.wrap(client, wire="headers_only")
        assert type(client) is kind
        client.chat.completions.create(**CHAT)
    [call] = antiphon_router.calls()
    assert call.headers["x-session-id"] == "bound"
    assert "conversation_id" not in call.body


def test_openai_without_a_name_that_stamping_leans_on_costs_no_call(
    antiphon_router: FakeRouter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(*args: object, **kwargs: object) -> str:
        raise AttributeError("'OpenAI' has no attribute '_custom_headers'")

    monkeypatch.setattr(antiphon_openai._attempt, "stamp", gone)
    with OpenAI(base_url=antiphon_router.base_url, api_key="k") as client, antiphon.conversation():
        antiphon_openai.wrap(client)
        for _ in range(2):
            assert client.chat.completions.create(**CHAT).id
    assert [call.body for call in antiphon_router.calls()] == [CHAT] * 2
    [warning] = caplog.messages
    assert f"openai {openai.__version__}" in warning
    assert "_custom_headers" in warning


def test_unwrap_gives_the_client_back_as_it_was(antiphon_router: FakeRouter) -> None:
    with OpenAI(base_url=antiphon_router.base_url, api_key="k") as client:
        assert antiphon_openai.unwrap(antiphon_openai.wrap(client)) is client
        assert type(client) is OpenAI
        assert antiphon_openai.unwrap(client) is client
        with antiphon.conversation("c"):
            client.chat.completions.create(**CHAT)
    assert "x-session-id" not in antiphon_router.calls()[0].headers


def test_unwrap_forgets_what_was_bound(antiphon_router: FakeRouter) -> None:
    with OpenAI(base_url=antiphon_router.base_url, api_key="k") as client:
        antiphon_openai.wrap(client, conversation=antiphon.conversation("bound"), wire="dynamo")
        antiphon_openai.wrap(antiphon_openai.unwrap(client))
        with antiphon.conversation("c"):
            client.chat.completions.create(**CHAT)
    assert antiphon_router.calls()[0].headers["x-session-id"] == "c"


def test_unwrap_refuses_under_a_later_subclass() -> None:
    with OpenAI(base_url="http://localhost:1/v1", api_key="k") as client:
        antiphon_openai.wrap(client)
        client.__class__ = type("Later", (type(client),), {})
        with pytest.raises(antiphon.ClientError, match="cannot unwrap this Later"):
            antiphon_openai.unwrap(client)


def test_patches_of_other_libraries_survive(antiphon_router: FakeRouter) -> None:
    with OpenAI(base_url=antiphon_router.base_url, api_key="k") as client:
        traced: list[str] = []
        create = client.chat.completions.create

        def tracing(**kwargs: Any) -> Any:
            traced.append(kwargs["model"])
            return create(**kwargs)

        client.chat.completions.create = tracing  # type: ignore[method-assign]
        antiphon_openai.wrap(client)
        with antiphon.conversation("c"):
            client.chat.completions.create(**CHAT)
    assert traced == ["m"]
    assert antiphon_router.calls()[0].body["conversation_id"] == "c"


def test_bound_conversation_wins_over_the_surrounding_one_and_survives_with_options(
    antiphon_router: FakeRouter,
) -> None:
    bound = antiphon.conversation("bound")
    with OpenAI(base_url=antiphon_router.base_url, api_key="k") as client:
        antiphon_openai.wrap(client, conversation=bound)
        with antiphon.conversation("around"):
            client.with_options(timeout=60).with_options(max_retries=1).chat.completions.create(**CHAT)
            client.copy(timeout=60).chat.completions.create(**CHAT)
    assert [call.body["conversation_id"] for call in antiphon_router.calls()] == ["bound", "bound"]
    assert antiphon_router.ends() == []
    bound.close()
    assert antiphon_router.ends() == ["bound"]


def test_other_objects_are_refused_by_name() -> None:
    with pytest.raises(antiphon.ClientError, match="cannot wrap a dict: pass the OpenAI or AsyncOpenAI"):
        antiphon_openai.wrap(cast("Any", {}))
    with httpx.Client() as http, pytest.raises(antiphon.ClientError, match=r"go to antiphon\.hook"):
        antiphon_openai.wrap(cast("Any", http))


def test_module_level_client_is_refused() -> None:
    with pytest.raises(antiphon.ClientError, match="cannot wrap a module"):
        antiphon_openai.wrap(cast("Any", openai))


def test_unknown_wire_is_refused_at_once() -> None:
    with OpenAI(base_url="http://localhost:1/v1", api_key="k") as client:
        with pytest.raises(antiphon.WireError):
            antiphon_openai.wrap(client, wire="nonsense")
        assert type(client) is OpenAI


def test_wires_other_than_the_routers_get_no_end(antiphon_router: FakeRouter) -> None:
    with OpenAI(base_url=antiphon_router.base_url, api_key="k") as client:
        antiphon_openai.wrap(client, wire="dynamo")
        with antiphon.conversation("c", parent="p"):
            client.chat.completions.create(**CHAT)
    [call] = antiphon_router.requests
    assert call.headers["x-dynamo-session-id"] == "c"
    assert call.headers["x-dynamo-parent-session-id"] == "p"
    assert "conversation_id" not in call.body


def test_nothing_goes_to_the_vendor_unless_asked() -> None:
    seen: list[httpx.Request] = []
    with OpenAI(api_key="k", http_client=cast("Any", answering(seen))) as client:
        antiphon_openai.wrap(client)
        with antiphon.conversation("c"):
            client.chat.completions.create(**CHAT)
            antiphon_openai.wrap(client, wire="default")
            client.chat.completions.create(**CHAT)
    silent, asked = seen
    assert silent.url.host == asked.url.host == "api.openai.com"
    assert "x-session-id" not in silent.headers
    assert b"conversation_id" not in silent.content
    assert asked.headers["x-session-id"] == "c"


def test_nothing_goes_to_the_vendor_by_an_absolute_url() -> None:
    seen: list[httpx.Request] = []
    with OpenAI(base_url="http://r/v1", api_key="k", http_client=cast("Any", answering(seen))) as client:
        antiphon_openai.wrap(client)
        with antiphon.conversation("c", keep=True):
            client.post("https://api.openai.com/v1/chat/completions", cast_to=object, body=CHAT)
            client.post("http://other/v1/chat/completions", cast_to=object, body=CHAT)
    assert ["x-session-id" in request.headers for request in seen] == [False, True]


def test_azure_vendor_is_left_alone_and_an_azure_gateway_is_stamped(antiphon_router: FakeRouter) -> None:
    seen: list[httpx.Request] = []
    vendor = AzureOpenAI(
        azure_endpoint="https://mine.openai.azure.com",
        api_version="1",
        api_key="k",
        http_client=cast("Any", answering(seen)),
    )
    gateway = AzureOpenAI(
        azure_endpoint=antiphon_router.base_url, azure_deployment="d", api_version="1", api_key="k"
    )
    with vendor, gateway, antiphon.conversation("c"):
        for client in (vendor, gateway):
            assert isinstance(antiphon_openai.wrap(client), AzureOpenAI)
            client.chat.completions.create(**CHAT)
            client.with_options(timeout=60).chat.completions.create(**CHAT)
    assert all("x-session-id" not in request.headers for request in seen)
    assert [call.body["conversation_id"] for call in antiphon_router.calls()] == ["c", "c"]
    assert {call.path for call in antiphon_router.calls()} == {
        "/v1/openai/deployments/d/chat/completions?api-version=1"
    }
    end = antiphon_router.requests[-1]
    assert (end.method, end.path) == ("DELETE", "/v1/openai/conversations/c")
    assert end.headers["api-key"] == "k"


async def test_async_azure_gateway_is_stamped(antiphon_router: FakeRouter) -> None:
    client = AsyncAzureOpenAI(base_url=antiphon_router.base_url, api_version="1", api_key="k")
    async with antiphon_openai.wrap(client), antiphon.conversation("c"):
        await client.chat.completions.create(**CHAT)
    assert antiphon_router.calls()[0].body["conversation_id"] == "c"
    assert antiphon_router.calls()[0].headers["x-session-id"] == "c"


def test_legacy_httpx_client_is_stamped_and_carries_the_end(antiphon_router: FakeRouter) -> None:
    transport = httpx.Client(headers={"x-of": "transport"})
    with OpenAI(base_url=antiphon_router.base_url, api_key="k", http_client=cast("Any", transport)) as client:
        antiphon_openai.wrap(client)
        with antiphon.conversation("c"):
            client.chat.completions.create(**CHAT)
    assert antiphon_router.calls()[0].body["conversation_id"] == "c"
    assert antiphon_router.requests[-1].headers["x-of"] == "transport"


def test_end_is_told_after_the_client_closed(antiphon_router: FakeRouter) -> None:
    with antiphon.conversation("c"), OpenAI(base_url=antiphon_router.base_url, api_key="k") as client:
        antiphon_openai.wrap(client).chat.completions.create(**CHAT)
    assert antiphon_router.ends() == ["c"]
    assert antiphon_router.requests[-1].headers["authorization"] == "Bearer k"


async def test_async_client_is_ended_by_a_sync_close_and_the_other_way_round(
    antiphon_router: FakeRouter,
) -> None:
    conversation = antiphon.conversation("c")
    async with AsyncOpenAI(base_url=antiphon_router.base_url, api_key="k") as client:
        await antiphon_openai.wrap(client, conversation=conversation).chat.completions.create(**CHAT)
        await asyncio.to_thread(conversation.close)
    with OpenAI(base_url=antiphon_router.base_url, api_key="k") as sync_client:
        antiphon_openai.wrap(sync_client, conversation=conversation)
        await asyncio.to_thread(lambda: sync_client.chat.completions.create(**CHAT))
        await conversation.aclose()
    assert antiphon_router.ends() == ["c"] * 2


def test_threads_carry_their_own_ids(antiphon_router: FakeRouter) -> None:
    everyone_in = threading.Barrier(6, timeout=60)
    client = antiphon_openai.wrap(OpenAI(base_url=antiphon_router.base_url, api_key="k"))

    def agent(name: str) -> None:
        with antiphon.conversation(name):
            everyone_in.wait()
            for _ in range(2):
                client.chat.completions.create(model=name, messages=CHAT["messages"])

    names = [f"agent-{i}" for i in range(6)]
    threads = [threading.Thread(target=agent, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    calls = antiphon_router.calls()
    assert len(calls) == 12
    assert all(c.body["model"] == c.body["conversation_id"] == c.headers["x-session-id"] for c in calls)
    assert sorted(antiphon_router.ends()) == names


async def test_tasks_carry_their_own_ids(antiphon_router: FakeRouter) -> None:
    everyone_in = asyncio.Barrier(6)
    client = antiphon_openai.wrap(AsyncOpenAI(base_url=antiphon_router.base_url, api_key="k"))

    async def agent(name: str) -> None:
        async with antiphon.conversation(name):
            await everyone_in.wait()
            for _ in range(2):
                await client.chat.completions.create(model=name, messages=CHAT["messages"])

    names = [f"agent-{i}" for i in range(6)]
    await asyncio.gather(*map(agent, names))
    await client.close()
    calls = antiphon_router.calls()
    assert len(calls) == 12
    assert all(c.body["model"] == c.body["conversation_id"] == c.headers["x-session-id"] for c in calls)
    assert sorted(antiphon_router.ends()) == names


def test_missing_openai_is_an_error_that_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(antiphon.MissingDependencyError, match=r"pip install 'antiphon\[openai\]'"):
        runpy.run_path(str(antiphon_openai.__file__))
