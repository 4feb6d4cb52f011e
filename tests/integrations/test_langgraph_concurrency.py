"""Many threads at once: no model call carries the id of another."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("langchain.agents")
pytest.importorskip("langchain_openai")

from langchain.agents import create_agent
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Send

from antiphon.testing import FakeRouter
from antiphon_langgraph import AntiphonMiddleware
from doubles.agents import State, asked, identity, obedient, thread

THREADS = 40
TURNS = 5
NAMES = [f"thread-{place}" for place in range(THREADS)]


def says(text: str) -> Any:
    return {"messages": [{"role": "user", "content": text}]}


class Fleet:
    """A graph that starts two branches with ``Send``, each of which asks the model, then an agent whose tool
    runs a sub-agent. Every prompt holds the id that its call ought to carry."""

    def __init__(self, antiphon_router: FakeRouter) -> None:
        antiphon_router.answer = obedient
        self.antiphon_router = antiphon_router
        self.model = ChatOpenAI(base_url=antiphon_router.base_url, api_key="k", model="m")  # type: ignore[arg-type]
        sub_agent: Any = create_agent(self.model, [], middleware=[AntiphonMiddleware()])

        def research(task: str) -> str:
            """Ask a sub-agent."""
            return str(sub_agent.invoke(says(f"T/{task}"))["messages"][-1].text)

        async def aresearch(task: str) -> str:
            """Ask a sub-agent."""
            return str((await sub_agent.ainvoke(says(f"T/{task}")))["messages"][-1].text)

        def branch(state: State, config: RunnableConfig) -> State:
            self.model.invoke(state["text"])
            return {}

        async def abranch(state: State, config: RunnableConfig) -> State:
            await self.model.ainvoke(state["text"])
            return {}

        self.graph = self._graph(branch)
        self.agraph = self._graph(abranch)
        self.agent: Any = create_agent(
            self.model,
            [tool("research")(research)],
            middleware=[AntiphonMiddleware()],
            checkpointer=InMemorySaver(),
        )
        self.aagent: Any = create_agent(
            self.model,
            [tool("research")(aresearch)],
            middleware=[AntiphonMiddleware()],
            checkpointer=InMemorySaver(),
        )

    def _graph(self, branch: Any) -> Any:
        graph = StateGraph(State)
        graph.add_node("work", branch)
        graph.add_conditional_edges(
            START,
            lambda state: [Send("work", {"text": f"{state['text']}/work#{place}"}) for place in range(2)],
            ["work"],
        )
        return graph.compile(checkpointer=InMemorySaver())

    def check(self) -> None:
        carried = Counter(identity(call) for call in self.antiphon_router.calls())
        for call in self.antiphon_router.calls():
            expected = asked(call)
            found = identity(call)
            if expected.startswith("call "):
                expected = expected.rpartition("@")[2]
            elif expected.startswith("T/"):
                expected = f"{expected.rpartition('@')[2]}/{expected.removeprefix('T/')}"
            assert found == expected
        for name in NAMES:
            assert carried[name] == 2 * TURNS
            assert carried[f"{name}/work#0"] == carried[f"{name}/work#1"] == TURNS
            assert sum(carried[f"{name}/{turn}@{name}"] for turn in range(TURNS)) == TURNS
        assert len(self.antiphon_router.calls()) == THREADS * TURNS * 5


def test_forty_threads_in_batches(antiphon_router: FakeRouter) -> None:
    fleet = Fleet(antiphon_router)
    configs = [thread(name) | {"max_concurrency": 16} for name in NAMES]
    for turn in range(TURNS):
        fleet.agent.batch([says(f"call research:{turn}@{name}") for name in NAMES], configs)
        fleet.graph.batch([{"text": name} for name in NAMES], configs)
    fleet.model.root_client.close()
    fleet.check()


async def test_forty_threads_gathered(antiphon_router: FakeRouter) -> None:
    fleet = Fleet(antiphon_router)

    async def live(name: str) -> None:
        for turn in range(TURNS):
            await fleet.aagent.ainvoke(says(f"call research:{turn}@{name}"), thread(name))
            await fleet.agraph.ainvoke({"text": name}, thread(name))

    await asyncio.gather(*map(live, NAMES))
    await fleet.model.root_async_client.close()
    fleet.check()
