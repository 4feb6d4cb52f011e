"""The OpenAI clients in whatever model an agent is given, and in no other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("langchain.agents")
pytest.importorskip("langchain_openai")

import httpx
from langchain.agents import create_agent
from langchain.agents.middleware import ModelFallbackMiddleware
from langchain.chat_models import init_chat_model
from langchain_core.runnables import ConfigurableField
from langchain_core.tools import tool
from langchain_openai import AzureChatOpenAI, ChatOpenAI
from langchain_openai.chat_models.base import BaseChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from openai import AsyncOpenAI, OpenAI

import antiphon
import antiphon_openai
from antiphon.testing import FakeRouter
from antiphon_langgraph import AntiphonMiddleware, VerbatimChatOpenAI, chat_openai
from antiphon_langgraph._clients import stamp_calls
from antiphon_openai import _wrap
from doubles.agents import identity, obedient, thread

HELLO: Any = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(autouse=True)
def obeying(antiphon_router: FakeRouter) -> None:
    antiphon_router.answer = obedient


def make(kind: Any, **options: Any) -> Any:
    return kind(model="m", api_key="k", **options)


def chat(antiphon_router: FakeRouter, kind: Any = ChatOpenAI, **options: Any) -> Any:
    return make(kind, base_url=antiphon_router.base_url, **options)


def ids(antiphon_router: FakeRouter) -> list[str | None]:
    return [identity(call) for call in antiphon_router.calls()]


def agent_of(model: Any, *middleware: Any, **options: Any) -> Any:
    return create_agent(model, [], middleware=middleware or [AntiphonMiddleware()], **options)


def run(model: Any) -> None:
    """An agent's run in thread T, whichever model it is given."""
    agent_of(model).invoke(HELLO, thread("T"))


def server(answer: Callable[[httpx.Request], httpx.Response]) -> Any:
    return httpx.Client(transport=httpx.MockTransport(answer))


def broken() -> Any:
    """A model whose server refuses."""
    refusing = server(lambda _: httpx.Response(400))
    return make(ChatOpenAI, base_url="http://127.0.0.1:1/v1", http_client=refusing)


@tool
def lookup(task: str) -> str:
    """Look something up."""
    return task


def test_plain_model_and_one_that_stamps_by_itself(antiphon_router: FakeRouter) -> None:
    run(chat(antiphon_router))
    run(chat(antiphon_router, VerbatimChatOpenAI))
    run(chat(antiphon_router, chat_openai))
    assert ids(antiphon_router) == ["T"] * 3
    assert len({call.headers["x-turn-id"] for call in antiphon_router.calls()}) == 3


def test_model_in_bindings(antiphon_router: FakeRouter) -> None:
    run(chat(antiphon_router).bind(temperature=0.5).with_config(tags=["bound"]).with_retry())
    run(chat(antiphon_router).bind_tools([lookup]))
    assert ids(antiphon_router) == ["T"] * 2


def test_fallbacks_of_a_model(antiphon_router: FakeRouter) -> None:
    run(broken().with_fallbacks([chat(antiphon_router)]))
    assert ids(antiphon_router) == ["T"]


def test_alternatives_and_configurable_fields_of_a_model(antiphon_router: FakeRouter) -> None:
    model = chat(antiphon_router, max_retries=0).configurable_fields(
        temperature=ConfigurableField(id="temperature")
    )
    stamp_calls(model)
    choice = broken().configurable_alternatives(ConfigurableField(id="which"), other=model)
    stamp_calls(choice)
    with antiphon.conversation("T", keep=True):
        choice.with_config(configurable={"which": "other", "temperature": 0.25}).invoke("hello")
    assert ids(antiphon_router) == ["T"]
    assert antiphon_router.calls()[0].body["temperature"] == 0.25


def test_model_that_is_made_anew_for_each_call(antiphon_router: FakeRouter) -> None:
    made = init_chat_model(
        "openai:m", configurable_fields=("temperature",), base_url=antiphon_router.base_url, api_key="k"
    )
    agent = agent_of(made, checkpointer=InMemorySaver())
    for temperature in (0.25, 0.75):
        agent.invoke(HELLO, thread("T", temperature=temperature))
    with antiphon.conversation("T", keep=True):
        made.with_config(tags=["x"]).invoke("hello")
        made.bind_tools([lookup]).with_config(tags=["x"]).invoke("hello")
    assert ids(antiphon_router) == ["T"] * 4
    assert [call.body.get("temperature") for call in antiphon_router.calls()] == [0.25, 0.75, None, None]
    assert type(made).__name__ == "_ConfigurableModel"
    before = type(made)
    stamp_calls(made)
    assert type(made) is before


def test_azure_gateway(antiphon_router: FakeRouter) -> None:
    run(make(AzureChatOpenAI, azure_endpoint=antiphon_router.base_url, api_version="1"))
    assert ids(antiphon_router) == ["T"]


async def test_model_that_was_given_its_clients(antiphon_router: FakeRouter) -> None:
    with OpenAI(base_url=antiphon_router.base_url, api_key="k") as plain:
        async with AsyncOpenAI(base_url=antiphon_router.base_url, api_key="k") as aplain:
            model = make(ChatOpenAI, client=plain.chat.completions, async_client=aplain.chat.completions)
            assert model.root_client is None
            run(model)
            await agent_of(model).ainvoke(HELLO, thread("T"))
    assert ids(antiphon_router) == ["T"] * 2


def test_client_that_is_none_of_openais_passes_by() -> None:
    stamp_calls(make(ChatOpenAI, client=object(), async_client=object()))


def test_other_vendors_models_on_openais_protocol_are_left_alone(antiphon_router: FakeRouter) -> None:
    class ChatVendor(BaseChatOpenAI):
        pass

    run(chat(antiphon_router, ChatVendor))
    assert ids(antiphon_router) == [None]
    assert "x-turn-id" not in antiphon_router.calls()[0].headers


@pytest.mark.parametrize("outermost", ["fallback", "ours"])
def test_nothing_leaks_to_a_vendor_that_a_call_falls_back_to(
    antiphon_router: FakeRouter, outermost: str
) -> None:
    seen: list[httpx.Request] = []
    message = {"role": "assistant", "content": "hello"}
    completion = {"id": "1", "model": "m", "choices": [{"index": 0, "message": message}]}

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=completion)

    antiphon_router.statuses.append(400)
    fallback = ModelFallbackMiddleware(make(ChatOpenAI, http_client=server(answer)))
    ours = AntiphonMiddleware()
    order = (fallback, ours) if outermost == "fallback" else (ours, fallback)
    agent_of(chat(antiphon_router), *order).invoke(HELLO, thread("T"))
    assert ids(antiphon_router) == ["T"]
    [request] = seen
    assert request.url.host == "api.openai.com"
    assert not {"x-session-id", "x-turn-id", "x-parent-session-id"} & set(request.headers)
    assert b"conversation_id" not in request.content


def test_models_are_told_apart_without_importing_langchain_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(ChatOpenAI, base_url="http://127.0.0.1:1/v1")
    monkeypatch.delitem(sys.modules, "langchain_openai")
    stamp_calls(model)
    assert type(model.root_client) is OpenAI


def test_client_that_another_thread_wraps_meanwhile_is_wrapped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(ChatOpenAI, base_url="http://127.0.0.1:1/v1")
    told = _wrap._is_wrapped

    def overtaken(kind: type[Any]) -> bool:
        wrapped = told(kind)
        monkeypatch.setattr(_wrap, "_is_wrapped", told)
        antiphon_openai.wrap(model.root_client)
        return wrapped

    monkeypatch.setattr(_wrap, "_is_wrapped", overtaken)
    stamp_calls(model)
    assert type(model.root_client).__mro__[1] is OpenAI
    assert type(model.root_async_client).__mro__[1] is AsyncOpenAI
