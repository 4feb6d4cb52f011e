"""A LangGraph agent that looks up the weather four times, one call a turn, and then reports.

A grammar makes the model do what a trained one does by itself: call when it is time, in its own form.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import httpx
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from antiphon_langgraph import AntiphonMiddleware, conversation_of
from rig.answers import MODEL, parse_reuse
from rig.fleet import BLOCK

CALLS = 4
SYSTEM = "You are a travel agent. Look cities up with the tool, one call at a time, then report in one line."
QUESTION = "Which of Rome, Oslo, Lima and Cairo is the warmest this week, and what shall I pack?"
THOUGHT = "<think>[a-z ]{80}</think>"
REPORT = "[A-Za-z ,]{48}"


@tool
def look(city: Literal["Rome", "Oslo", "Lima", "Cairo"], days: Literal[1, 2, 3]) -> str:
    """Weather of a city over some days."""
    return f"{city}, {days} days: {len(city) * days + 3} degrees, clear, light wind from the south."


def call(comma: str = ", ", colon: str = ": ", line: str = "\n") -> str:
    """Regular expression of a Hermes call. By default as the chat template writes it again."""
    arguments = rf'\{{"city"{colon}"(Rome|Oslo|Lima|Cairo)"{comma}"days"{colon}[1-3]\}}'
    return rf'<tool_call>{line}\{{"name": "look", "arguments": {arguments}\}}{line}</tool_call>'


@dataclass(frozen=True)
class Form:
    """How the model writes. ``call``, ``report``: regular expressions; ``call`` None: vLLM forces calls by
    their name, after the tool's schema."""

    name: str
    call: str | None
    report: str = REPORT

    def __str__(self) -> str:
        return self.name

    def settings(self, calling: bool) -> tuple[Any, dict[str, Any]]:
        """``tool_choice`` and more of a turn's request. The tools stay the same in all turns: they are at the
        prompt's head."""
        pattern = self.call if calling else self.report
        strict = {"strict": True} if self.call is None else {}
        if pattern is None:
            return {"type": "function", "function": {"name": "look"}}, strict
        return "auto", {**strict, "extra_body": {"structured_outputs": {"regex": pattern}}}


class Forcing(AgentMiddleware[Any, Any, Any]):
    """Makes the model call, then report."""

    def __init__(self, form: Form, salt: str) -> None:
        super().__init__()
        self._form, self._salt = form, salt

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        done = sum(isinstance(message, AIMessage) for message in request.messages)
        choice, settings = self._form.settings(done < CALLS)
        body = {"cache_salt": self._salt, **settings.pop("extra_body", {})}
        return handler(request.override(tool_choice=choice, model_settings={**settings, "extra_body": body}))


@dataclass(frozen=True)
class Turn:
    """One model call. ``body``: as it was sent; ``message``: the reply."""

    body: dict[str, Any]
    message: AIMessage

    @property
    def reuse(self) -> dict[str, str]:
        return parse_reuse(self.message.response_metadata["headers"].get("x-antiphon-reuse"))

    @property
    def matched(self) -> int:
        return int(self.reuse["matched"])

    @property
    def ideal(self) -> int:
        """All that decode holds, in whole blocks."""
        return int(self.reuse["held"]) // BLOCK * BLOCK

    @property
    def logprobs(self) -> list[tuple[str, float]]:
        return logprobs(self.message.response_metadata)


def logprobs(choice: dict[str, Any]) -> list[tuple[str, float]]:
    """Tokens and their log-probabilities."""
    return [(token["token"], token["logprob"]) for token in choice["logprobs"]["content"]]


def investigate(
    model: Callable[..., ChatOpenAI], router: str, form: Form, *, stream: bool = False
) -> list[Turn]:
    """The turns of one conversation."""
    bodies: list[dict[str, Any]] = []
    salt = uuid.uuid4().hex

    def record(request: httpx.Request) -> None:
        if request.method == "POST":
            bodies.append(json.loads(request.content))

    with httpx.Client(event_hooks={"request": [record]}, timeout=300, trust_env=False) as client:
        agent: Any = create_agent(
            model(
                model=MODEL,
                base_url=f"{router}/v1",
                api_key="none",
                temperature=0,
                max_tokens=400,
                logprobs=True,
                max_retries=0,
                include_response_headers=True,
                http_client=client,
            ),
            [look],
            system_prompt=SYSTEM,
            middleware=[AntiphonMiddleware(), Forcing(form, salt)],
            checkpointer=InMemorySaver(),
        )
        question, thread = {"messages": [("user", QUESTION)]}, {"configurable": {"thread_id": salt}}
        if stream:
            list(agent.stream(question, thread, stream_mode="messages"))
        else:
            agent.invoke(question, thread)
        conversation = conversation_of(thread)
        assert conversation is not None
        conversation.close()
    said = agent.get_state(thread).values["messages"]
    replies = [message for message in said if isinstance(message, AIMessage)]
    return [Turn(body, reply) for body, reply in zip(bodies, replies, strict=True)]


def answered_cold(router: str, turn: Turn) -> list[tuple[str, float]]:
    """The same request of nobody's conversation, with caches that nobody filled."""
    body = {**turn.body, "cache_salt": uuid.uuid4().hex, "stream": False}
    del body["conversation_id"]
    body.pop("stream_options", None)
    reply = httpx.post(f"{router}/v1/chat/completions", json=body, timeout=300, trust_env=False)
    assert "path=cold" in reply.headers["x-antiphon-reuse"], reply.text
    return logprobs(reply.json()["choices"][0])
