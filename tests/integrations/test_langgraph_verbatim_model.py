"""The model that ``chat_openai`` makes: stamped however it is called, and a ChatOpenAI in all else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ValidationError

pytest.importorskip("langchain.agents")

from langchain.agents import create_agent
from langchain.agents.middleware import PIIMiddleware
from langchain_core.load import dumpd, load
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import ConfigurableField
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

import antiphon
import antiphon_openai
from antiphon_langgraph import VerbatimChatOpenAI, chat_openai
from doubles.scripted import Message, Scripted, say, scripted


class Place(BaseModel):
    """Where to look."""

    city: str


@tool
def look(city: str) -> str:
    """Weather of a city."""
    return f"{city}: clear"


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as server:
        yield server


def calling(call_id: str, arguments: str) -> Message:
    call = {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"content": None, "tool_calls": [call]}


def made(server: Scripted, **kwargs: Any) -> VerbatimChatOpenAI:
    return chat_openai(**{"model": "m", "base_url": server.base_url, "api_key": "k", **kwargs})


def stamps(server: Scripted) -> set[tuple[Any, Any]]:
    """Conversations that the requests named, in body and header."""
    fields = (body.get("conversation_id") for body in server.bodies)
    return set(zip(fields, (headers.get("x-session-id") for headers in server.headers), strict=True))


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # LangChain's, streaming parsed replies
async def test_every_way_to_call_is_stamped(server: Scripted) -> None:
    model = made(server)
    with antiphon.conversation("c", keep=True):
        model.invoke("hello")
        list(model.stream("hello"))
        model.batch(["hello"])
        await model.ainvoke("hello")
        [_ async for _ in model.astream("hello")]
        model.bind_tools([look]).invoke("hello")
        model.with_config(tags=["a"]).invoke("hello")
        model.model_copy(update={"temperature": 0.5}).invoke("hello")
        server.script.extend([say({"content": '{"city": "Rome"}'})] * 2)
        assert model.with_structured_output(Place).invoke("hello") == Place(city="Rome")
        assert [*model.with_structured_output(Place).stream("hello")][-1] == Place(city="Rome")
        server.script.append(say({"tool_calls": [calling("c1", '{"city":"Rome"}')["tool_calls"][0]]}))
        server.script[0].messages[0]["tool_calls"][0]["function"]["name"] = "Place"
        asking = model.with_structured_output(Place, method="function_calling")
        assert asking.invoke("hello") == Place(city="Rome")
    assert len(server.bodies) == 11
    assert stamps(server) == {("c", "c")}


def test_without_a_conversation_nothing_is_added(server: Scripted) -> None:
    made(server).invoke("hello")
    assert stamps(server) == {(None, None)}


def test_a_model_may_be_given_its_conversation_and_wire(server: Scripted) -> None:
    made(server, conversation=antiphon.conversation("mine"), wire="headers_only").invoke("hello")
    assert stamps(server) == {(None, "mine")}
    with pytest.raises(ValidationError, match="conversation"):
        made(server, conversation="mine")


def test_bound_bodies_replace_the_constructor_s_and_leave_the_stamp(server: Scripted) -> None:
    model = made(server, extra_body={"top_k": 1}, model_kwargs={"user": "u"}, default_headers={"X-Own": "1"})
    with antiphon.conversation("c", keep=True):
        model.invoke("hello")
        model.bind(extra_body={"min_p": 0.1}).invoke("hello")
    first, second = server.bodies
    assert (first["top_k"], first["user"]) == (1, "u")
    assert (second["min_p"], second.get("top_k")) == (0.1, None)
    assert {headers["x-own"] for headers in server.headers} == {"1"}
    assert stamps(server) == {("c", "c")}


def test_what_the_caller_says_of_the_conversation_wins(server: Scripted) -> None:
    with antiphon.conversation("c", keep=True):
        made(server, extra_body={"conversation_id": "own"}).invoke("hello")
    assert stamps(server) == {("own", None)}


async def test_clients_of_the_user_s_carry_the_calls(server: Scripted) -> None:
    seen: list[str] = []

    async def note(request: httpx.Request) -> None:
        seen.append("async")

    hooks: Any = {"request": [lambda request: seen.append("sync")]}
    with httpx.Client(event_hooks=hooks) as client:
        async with httpx.AsyncClient(event_hooks={"request": [note]}) as aclient:
            model = made(server, http_client=client, http_async_client=aclient)
            with antiphon.conversation("c", keep=True):
                model.invoke("hello")
                await model.ainvoke("hello")
    assert seen == ["sync", "async"]
    assert stamps(server) == {("c", "c")}


def test_a_client_given_alone_is_stamped_too(server: Scripted) -> None:
    """LangChain then leaves ``root_client`` None."""
    with OpenAI(base_url=server.base_url, api_key="k") as client:
        model = chat_openai(model="m", api_key="k", client=client.chat.completions)
        assert model.root_client is None
        server.script.append(say({**calling("c1", '{"city":"Rome"}')}))
        with antiphon.conversation("c", keep=True):
            answer = model.invoke("hello")
            model.invoke(["hello", answer])
    assert server.sent()[0]["tool_calls"][0]["function"]["arguments"] == '{"city":"Rome"}'
    assert stamps(server) == {("c", "c")}


async def test_an_async_client_given_alone_is_stamped_too(server: Scripted) -> None:
    async with AsyncOpenAI(base_url=server.base_url, api_key="k") as client:
        model = chat_openai(model="m", api_key="k", async_client=client.chat.completions)
        with antiphon.conversation("c", keep=True):
            await model.ainvoke("hello")
    assert stamps(server) == {("c", "c")}


async def test_a_model_with_an_async_key_only_works_async(server: Scripted) -> None:
    async def key() -> str:
        return "k"

    model = made(server, api_key=key)
    assert model.root_client is None
    server.script.append(say({**calling("c1", '{"city":"Rome"}')}))
    with antiphon.conversation("c", keep=True):
        answer = await model.ainvoke("hello")
        await model.ainvoke(["hello", answer])
    assert server.sent()[0]["tool_calls"][0]["function"]["arguments"] == '{"city":"Rome"}'
    assert stamps(server) == {("c", "c")}


class Fake:
    """A client of nobody's, as tests have them: it answers with dicts."""

    def __init__(self) -> None:
        self.with_raw_response = self
        self.asked: list[Any] = []

    def create(self, **payload: Any) -> Fake:
        self.asked.append(payload)
        return self

    def parse(self) -> Message:
        return say(calling("c1", '{"city":"Rome"}')).whole()


def test_clients_that_are_none_of_openai_s_serve_as_well() -> None:
    fake = Fake()
    model = chat_openai(model="m", api_key="k", client=fake, async_client=fake)
    model.invoke(["hello", model.invoke("hello")])
    assert fake.asked[-1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"city":"Rome"}'


def test_configured_copies_stay_stamped_and_verbatim(server: Scripted) -> None:
    """LangChain builds a new model for them."""
    model = made(server, conversation=antiphon.conversation("mine")).configurable_fields(
        temperature=ConfigurableField(id="t")
    )
    server.script.append(say(calling("c1", '{"city":"Rome"}')))
    answer = model.invoke("hello", config={"configurable": {"t": 0.1}})
    model.invoke(["hello", answer], config={"configurable": {"t": 0.2}})
    assert [body["temperature"] for body in server.bodies] == [0.1, 0.2]
    assert server.sent()[0]["tool_calls"][0]["function"]["arguments"] == '{"city":"Rome"}'
    assert stamps(server) == {("mine", "mine")}


def test_chat_completions_are_spoken_whatever_the_model_s_name(server: Scripted) -> None:
    made(server, model="gpt-5-pro").invoke("hello")
    assert "messages" in server.bodies[-1]
    assert made(server, use_responses_api=None, reasoning={"effort": "low"}).use_responses_api


def test_it_is_a_chat_openai_to_all_who_ask(server: Scripted) -> None:
    model = made(server, conversation=antiphon.conversation("mine"))
    assert isinstance(model, ChatOpenAI)
    assert isinstance(model.root_client, OpenAI)
    assert model._get_ls_params()["ls_provider"] == "openai"
    assert antiphon_openai.wrap(model.root_client) is model.root_client


@pytest.mark.filterwarnings("ignore:The function `load` is in beta")
def test_it_is_told_and_rebuilt_without_conversation_and_key(server: Scripted) -> None:
    told = dumpd(made(server, temperature=0.5, conversation=antiphon.conversation("mine"), wire="dynamo"))
    assert told["id"] == ["antiphon_langgraph", "VerbatimChatOpenAI"]
    assert not {"conversation", "wire", "client", "root_client"} & told["kwargs"].keys()
    again = load(
        told,
        secrets_map={"OPENAI_API_KEY": "k"},
        valid_namespaces=["antiphon_langgraph"],
        allowed_objects=[VerbatimChatOpenAI],
    )
    assert isinstance(again, VerbatimChatOpenAI)
    assert again.temperature == 0.5


@pytest.mark.parametrize("mode", ["values", "messages"])
def test_an_agent_with_a_checkpointer_resubmits_verbatim(server: Scripted, mode: str) -> None:
    """Over two runs, so that the second reads what the checkpointer wrote. Under "messages" it streams."""
    raws = [calling("c1", '{"city":"Rome"}'), calling("c2", '{"city":"Z\\u00fcrich"}')]
    server.script.extend([say(raws[0]), say({"content": "Clear."}), say(raws[1]), say({"content": "Clear."})])
    for said in server.script:
        for place, call in enumerate(said.messages[0].get("tool_calls", ())):
            call["index"] = place
    agent: Any = create_agent(made(server), [look], checkpointer=InMemorySaver(), name="scout")
    thread: Any = {"configurable": {"thread_id": "t"}}
    for text in ("Rome?", "Zürich?"):
        list(agent.stream({"messages": [HumanMessage(text)]}, thread, stream_mode=mode))
    sent = [
        call["function"]["arguments"] for message in server.sent() for call in message.get("tool_calls", ())
    ]
    assert sent == ['{"city":"Rome"}', '{"city":"Z\\u00fcrich"}']
    assert {message["name"] for message in server.sent()} == {"scout"}


def test_what_a_middleware_redacts_stays_redacted(server: Scripted) -> None:
    server.script.append(
        say({**calling("c1", '{"city":"Rome"}'), "content": "Ask a@b.example.", "reasoning": "x"})
    )
    redacting: Any = PIIMiddleware("email", apply_to_input=False, apply_to_output=True)
    agent: Any = create_agent(made(server), [look], middleware=[redacting])
    state = agent.invoke({"messages": [HumanMessage("Rome?")]})
    [first, _] = [message for message in state["messages"] if isinstance(message, AIMessage)]
    assert "a@b.example" not in first.content
    [sent] = server.sent()
    assert "a@b.example" not in str(sent)
    assert "reasoning" not in sent
