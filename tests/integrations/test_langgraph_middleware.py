"""Agents: their model calls, those of sub-agents in their tools, and those that LangChain makes beside."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("langchain.agents")
pytest.importorskip("langchain_openai")

from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    before_model,
    dynamic_prompt,
)
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import RemoveMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, interrupt
from openai import OpenAI

import antiphon
from antiphon.testing import FakeRouter
from antiphon_langgraph import AntiphonMiddleware, _middleware, chat_openai, conversation_of
from doubles.agents import asked, identity, obedient, thread


@pytest.fixture
def model(antiphon_router: FakeRouter) -> Iterator[ChatOpenAI]:
    antiphon_router.answer = obedient
    model = ChatOpenAI(base_url=antiphon_router.base_url, api_key="k", model="m")  # type: ignore[arg-type]
    yield model
    model.root_client.close()


def agent_with(model: Any, *tools: BaseTool, before: Any = (), **options: Any) -> Any:
    return create_agent(model, tools, middleware=[*before, AntiphonMiddleware()], **options)


def says(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def told(antiphon_router: FakeRouter) -> list[tuple[str, str | None]]:
    return sorted((asked(call), identity(call)) for call in antiphon_router.calls())


def research(sub_agent: Any) -> BaseTool:
    @tool
    def research(task: str) -> str:
        """Ask a sub-agent."""
        answer: str = sub_agent.invoke(says(f"sub {task}"))["messages"][-1].text
        return answer

    return research


def aresearch(sub_agent: Any) -> BaseTool:
    @tool
    async def research(task: str) -> str:
        """Ask a sub-agent."""
        answer: str = (await sub_agent.ainvoke(says(f"sub {task}")))["messages"][-1].text
        return answer

    return research


@tool
def lookup(task: str) -> str:
    """Look something up, without a model."""
    return f"found {task}"


def test_all_turns_and_steps_of_an_agent_are_its_thread(
    antiphon_router: FakeRouter, model: ChatOpenAI
) -> None:
    agent = agent_with(model, lookup, checkpointer=InMemorySaver())
    for _ in range(2):
        agent.invoke(says("call lookup:a lookup:b"), thread("T"))
    agent.invoke(says("hello"), thread("U"))
    assert told(antiphon_router) == [("call lookup:a lookup:b", "T")] * 4 + [("hello", "U")]
    assert antiphon_router.ends() == []


async def test_streams_and_async_runs_of_an_agent_are_its_thread(
    antiphon_router: FakeRouter, model: ChatOpenAI
) -> None:
    agent = agent_with(model, lookup)
    list(agent.stream(says("sync"), thread("T"), stream_mode="messages"))
    async for _ in agent.astream(says("async"), thread("T"), stream_mode="messages"):
        pass
    await agent.ainvoke(says("call lookup:a"), thread("T"))
    await model.root_async_client.close()
    assert told(antiphon_router) == [
        ("async", "T"),
        ("call lookup:a", "T"),
        ("call lookup:a", "T"),
        ("sync", "T"),
    ]
    assert [bool(call.body.get("stream")) for call in antiphon_router.calls()] == [True, True, False, False]


@pytest.mark.parametrize("own_middleware", [True, False])
def test_sub_agents_in_parallel_tools_are_children_by_tool_call(
    antiphon_router: FakeRouter, model: ChatOpenAI, own_middleware: bool
) -> None:
    sub_agent = agent_with(model, lookup) if own_middleware else create_agent(model, [lookup])
    agent = agent_with(model, research(sub_agent), checkpointer=InMemorySaver())
    agent.invoke(says("call research:a research:b"), thread("T"))
    assert told(antiphon_router) == [
        ("call research:a research:b", "T"),
        ("call research:a research:b", "T"),
        ("sub a", "T/a"),
        ("sub b", "T/b"),
    ]
    parents = {identity(call): call.headers.get("x-parent-session-id") for call in antiphon_router.calls()}
    assert parents == {"T": None, "T/a": "T", "T/b": "T"}
    assert sorted(antiphon_router.ends()) == ["T/a", "T/b"]


def test_tools_without_the_middleware_are_told_apart_all_the_same(antiphon_router: FakeRouter) -> None:
    antiphon_router.answer = obedient
    model = chat_openai(base_url=antiphon_router.base_url, api_key="k", model="m")

    @tool
    def ask(task: str) -> str:
        """Ask a model."""
        return str(model.invoke(f"sub {task}").text)

    agent: Any = create_agent(model, [ask, research(create_agent(model, []))])
    agent.invoke(says("call ask:a research:b"), thread("T"))
    model.root_client.close()
    ids = dict(told(antiphon_router))
    assert ids["sub a"] == "T/tools#0"
    assert str(ids["sub b"]).startswith("T/tools:")
    assert ids["call ask:a research:b"] == "T"


async def test_async_sub_agents_in_parallel_tools_are_children_by_tool_call(
    antiphon_router: FakeRouter, model: ChatOpenAI
) -> None:
    agent = agent_with(model, aresearch(agent_with(model)))
    await agent.ainvoke(says("call research:a research:b"), thread("T"))
    await model.root_async_client.close()
    assert told(antiphon_router)[2:] == [("sub a", "T/a"), ("sub b", "T/b")]
    assert sorted(antiphon_router.ends()) == ["T/a", "T/b"]


def test_sub_agents_of_sub_agents_are_grandchildren(antiphon_router: FakeRouter, model: ChatOpenAI) -> None:
    @tool
    def delegate(task: str) -> str:
        """Ask a sub-agent that asks another."""
        middle.invoke(says(f"call research:{task}-deep"))
        return "done"

    middle = agent_with(model, research(agent_with(model)))
    agent_with(model, delegate).invoke(says("call delegate:a"), thread("T"))
    assert [identity(call) for call in antiphon_router.calls()] == ["T", "T/a", "T/a/a-deep", "T/a", "T"]
    assert antiphon_router.ends() == ["T/a/a-deep", "T/a"]


def test_sub_agent_with_a_thread_of_its_own_keeps_it_in_a_block(
    antiphon_router: FakeRouter, model: ChatOpenAI
) -> None:
    sub_agent = agent_with(model, checkpointer=InMemorySaver())

    @tool
    def remember(task: str) -> str:
        """Ask a sub-agent that remembers."""
        sub_agent.invoke(says("sub of the call"), thread("S"))
        own = conversation_of(thread("S"))
        assert own is not None
        with own:
            sub_agent.invoke(says("sub of its own"), thread("S"))
        return "done"

    agent_with(model, remember).invoke(says("call remember:a"), thread("T"))
    assert [identity(call) for call in antiphon_router.calls()] == ["T", "T/a", "S", "T"]
    assert antiphon_router.ends() == ["T/a"]


def test_tool_call_that_fails_ends_its_child(antiphon_router: FakeRouter, model: ChatOpenAI) -> None:
    @tool
    def broken(task: str) -> str:
        """Ask a model, then fail."""
        model.invoke(f"sub {task}")
        raise ValueError(task)

    with pytest.raises(ValueError, match="a"):
        agent_with(model, broken).invoke(says("call broken:a"), thread("T"))
    assert told(antiphon_router) == [("call broken:a", "T"), ("sub a", "T/a")]
    assert antiphon_router.ends() == ["T/a"]


def doubtful(model: ChatOpenAI) -> tuple[BaseTool, BaseTool]:
    @tool
    def doubt(task: str) -> str:
        """Ask a model, then a human."""
        model.invoke(f"sub {task}")
        return str(interrupt("sure?"))

    @tool("doubt")
    async def adoubt(task: str) -> str:
        """Ask a model, then a human."""
        await model.ainvoke(f"sub {task}")
        return str(interrupt("sure?"))

    return doubt, adoubt


def test_interrupted_tool_call_goes_on_under_its_id_and_ends_when_done(
    antiphon_router: FakeRouter, model: ChatOpenAI
) -> None:
    agent = agent_with(model, doubtful(model)[0], checkpointer=InMemorySaver())
    agent.invoke(says("call doubt:a"), thread("T"))
    assert antiphon_router.ends() == []
    agent.invoke(Command(resume="yes"), thread("T"))
    assert [identity(call) for call in antiphon_router.calls()] == ["T", "T/a", "T/a", "T"]
    assert antiphon_router.ends() == ["T/a"]


async def test_interrupted_async_tool_call_goes_on_under_its_id_and_ends_when_done(
    antiphon_router: FakeRouter, model: ChatOpenAI
) -> None:
    agent = agent_with(model, doubtful(model)[1], checkpointer=InMemorySaver())
    await agent.ainvoke(says("call doubt:a"), thread("T"))
    assert antiphon_router.ends() == []
    await agent.ainvoke(Command(resume="yes"), thread("T"))
    await model.root_async_client.close()
    assert [identity(call) for call in antiphon_router.calls()] == ["T", "T/a", "T/a", "T"]
    assert antiphon_router.ends() == ["T/a"]


def test_forks_of_an_agent_stay_in_its_thread(antiphon_router: FakeRouter, model: ChatOpenAI) -> None:
    agent = agent_with(model, lookup, checkpointer=InMemorySaver())
    agent.invoke(says("call lookup:a"), thread("T"))
    past = next(state for state in agent.get_state_history(thread("T")) if state.next == ("tools",))
    agent.invoke(None, past.config)
    assert [identity(call) for call in antiphon_router.calls()] == ["T"] * 3


def summing_up(model: ChatOpenAI) -> SummarizationMiddleware:
    return SummarizationMiddleware(
        model=model, trigger=("messages", 4), keep=("messages", 1), summary_prompt="sum up {messages}"
    )


def test_summaries_are_a_child_and_leave_the_threads_frontier(
    antiphon_router: FakeRouter, model: ChatOpenAI
) -> None:
    agent = agent_with(model, before=[summing_up(model)], checkpointer=InMemorySaver())
    for text in ("one", "two", "three"):
        agent.invoke(says(text), thread("T"))
    summaries = [call for call in antiphon_router.calls() if asked(call).startswith("sum up")]
    assert [identity(call) for call in summaries] == ["T/summarization"]
    assert summaries[0].headers["x-parent-session-id"] == "T"
    assert [identity(call) for call in antiphon_router.calls() if call not in summaries] == ["T"] * 3
    assert antiphon_router.ends() == []


async def test_async_summaries_are_a_child(antiphon_router: FakeRouter, model: ChatOpenAI) -> None:
    agent = agent_with(model, before=[summing_up(model)], checkpointer=InMemorySaver())
    for text in ("one", "two", "three"):
        await agent.ainvoke(says(text), thread("T"))
    await model.root_async_client.close()
    summaries = [identity(call) for call in antiphon_router.calls() if asked(call).startswith("sum up")]
    assert summaries == ["T/summarization"]


def test_summaries_of_sub_agents_and_in_blocks_are_children_too(
    antiphon_router: FakeRouter, model: ChatOpenAI
) -> None:
    summing = summing_up(model)
    sub_agent = agent_with(model, before=[summing])

    @tool
    def research(task: str) -> str:
        """Ask a sub-agent that has read much."""
        read = [{"role": "user", "content": "sub"}, {"role": "assistant", "content": "done"}]
        sub_agent.invoke({"messages": [*read, *read, *says(task)["messages"]]})
        return "done"

    with antiphon.conversation("block"):
        agent = agent_with(model, research, before=[summing], checkpointer=InMemorySaver())
        agent.invoke(says("call research:a"), thread("T"))
        agent.invoke(says("two"), thread("T"))
    summaries = [identity(call) for call in antiphon_router.calls() if asked(call).startswith("sum up")]
    assert summaries == ["block/a/summarization", "block/summarization"]
    assert {identity(call) for call in antiphon_router.calls()} == {"block", "block/a", *summaries}
    assert sorted(antiphon_router.ends()) == ["block", "block/a", *summaries]


def trimming() -> AgentMiddleware[Any, Any, Any]:
    @before_model
    def trim(state: Any, runtime: Any) -> dict[str, Any]:
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *state["messages"][-1:]]}

    return trim


def redacting() -> AgentMiddleware[Any, Any, Any]:
    return PIIMiddleware("email")


def prompting() -> AgentMiddleware[Any, Any, Any]:
    @dynamic_prompt
    def prompt(request: Any) -> str:
        return f"You have read {len(request.messages)} messages."

    return prompt


@pytest.mark.parametrize("rewriting", [trimming, redacting, prompting])
def test_rewritten_history_stays_in_its_thread(
    antiphon_router: FakeRouter, model: ChatOpenAI, rewriting: Callable[[], Any]
) -> None:
    agent = agent_with(model, before=[rewriting()], checkpointer=InMemorySaver())
    for text in ("write to a@b.org", "and again"):
        agent.invoke(says(text), thread("T"))
    calls = antiphon_router.calls()
    assert [identity(call) for call in calls] == ["T", "T"]
    said = [message["content"] for message in calls[1].body["messages"]]
    assert said != ["write to a@b.org", "done", "and again"]
    assert antiphon_router.ends() == []


async def test_without_a_thread_nothing_is_stamped_and_no_client_touched(
    antiphon_router: FakeRouter, model: ChatOpenAI
) -> None:
    @tool
    def ask(task: str) -> str:
        """Ask a model."""
        model.invoke(f"sub {task}")
        return "done"

    agent = agent_with(model, ask)
    agent.invoke(says("call ask:a"))
    await agent.ainvoke(says("call ask:a"))
    await model.root_async_client.close()
    assert {identity(call) for call in antiphon_router.calls()} == {None}
    assert "x-turn-id" not in antiphon_router.calls()[0].headers
    assert type(model.root_client) is OpenAI


def test_block_around_an_agent_wins_over_its_thread(antiphon_router: FakeRouter, model: ChatOpenAI) -> None:
    agent = agent_with(model, research(agent_with(model)))
    with antiphon.conversation("block"):
        agent.invoke(says("call research:a"), thread("T"))
        assert antiphon_router.ends() == ["block/a"]
    assert [identity(call) for call in antiphon_router.calls()] == ["block", "block/a", "block"]
    assert antiphon_router.ends()[1:] == ["block"]


def test_what_the_model_was_given_wins(antiphon_router: FakeRouter, model: ChatOpenAI) -> None:
    mine = ChatOpenAI(
        base_url=antiphon_router.base_url,
        api_key="k",  # type: ignore[arg-type]
        model="m",
        extra_body={"conversation_id": "mine"},
        default_headers={"X-Session-ID": "mine"},
    )
    agent_with(mine).invoke(says("hello"), thread("T"))
    mine.root_client.close()
    assert told(antiphon_router) == [("hello", "mine")]


def test_models_of_other_kinds_pass_by() -> None:
    answer = agent_with(FakeListChatModel(responses=["hello"])).invoke(says("hi"), thread("T"))
    assert answer["messages"][-1].text == "hello"


def test_stamping_that_fails_costs_no_call(
    antiphon_router: FakeRouter,
    model: ChatOpenAI,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(model: Any) -> None:
        raise RecursionError

    monkeypatch.setattr(_middleware, "stamp_calls", fail)
    with caplog.at_level(logging.DEBUG, "antiphon"):
        agent_with(model).invoke(says("hello"), thread("T"))
    assert told(antiphon_router) == [("hello", None)]
    assert "cannot make 'ChatOpenAI' stamp its calls" in caplog.text


def test_tool_call_without_an_id_stays_in_its_agents_conversation() -> None:
    request = ToolCallRequest({"name": "t", "args": {}, "id": None}, None, {}, None)  # type: ignore[arg-type]
    seen: list[antiphon.Conversation | None] = []

    def handler(request: ToolCallRequest) -> ToolMessage:
        seen.append(antiphon.current())
        return ToolMessage("done", tool_call_id="")

    with antiphon.conversation("c") as conversation:
        AntiphonMiddleware().wrap_tool_call(request, handler)
    assert seen == [conversation]


def test_agents_in_parallel_threads_share_a_model_and_no_id(
    antiphon_router: FakeRouter, model: ChatOpenAI
) -> None:
    agent = agent_with(model, research(agent_with(model)))
    agent.batch(
        [says(f"call research:{name}") for name in "abcdefgh"], [thread(f"T-{name}") for name in "abcdefgh"]
    )
    expected = [("sub " + name, f"T-{name}/{name}") for name in "abcdefgh"]
    assert [pair for pair in told(antiphon_router) if pair[0].startswith("sub")] == expected
    assert all(pair[1] == f"T-{pair[0][-1]}" for pair in told(antiphon_router) if pair[0].startswith("call"))


async def test_agents_in_parallel_tasks_share_a_model_and_no_id(
    antiphon_router: FakeRouter, model: ChatOpenAI
) -> None:
    agent = agent_with(model, aresearch(agent_with(model)))
    await asyncio.gather(
        *(agent.ainvoke(says(f"call research:{name}"), thread(f"T-{name}")) for name in "abcdefgh")
    )
    await model.root_async_client.close()
    expected = [("sub " + name, f"T-{name}/{name}") for name in "abcdefgh"]
    assert [pair for pair in told(antiphon_router) if pair[0].startswith("sub")] == expected
