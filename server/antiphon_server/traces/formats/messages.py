"""Conversations written down as their messages: each answer in them was a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon_server.traces.error import UnreadableError
from antiphon_server.traces.formats.format import Format, Reading
from antiphon_server.traces.pool import Pool
from antiphon_server.traces.source import Document
from antiphon_server.traces.trace import Call, Conversation, Message

_LISTS = ("messages", "traj", "conversations", "conversation")
_IDS = ("id", "conversation_id", "session_id", "task_id")
_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
}
"""Of ShareGPT."""


def messages_in(value: Any) -> list[Message] | None:
    """The messages of a list of them, or None where it is none."""
    if not isinstance(value, list) or not value:
        return None
    found: list[Message] = []
    for message in value:
        if not isinstance(message, Mapping):
            return None
        if isinstance(message.get("role"), str):
            found.append(message)
        elif isinstance(said := message.get("from"), str) and "value" in message:
            found.append({"role": _ROLES.get(said, said), "content": message["value"]})
        else:
            return None
    return found


def told(value: Any) -> list[Message] | None:
    """The messages of a document."""
    if isinstance(value, list):
        return messages_in(value)
    if isinstance(value, Mapping):
        for name in _LISTS:
            if (found := messages_in(value.get(name))) is not None:
                return found
    return None


def fits(value: Any) -> bool:
    found = told(value)
    return found is not None and any(message["role"] == "assistant" for message in found)


def calls(messages: list[Message], pool: Pool, tools: Any = None) -> tuple[Call, ...]:
    """One for each message of the assistant's, with all that stands before it."""
    held, said = pool.all(messages), pool.tools(tools)
    return tuple(
        Call(
            prompt=pool.tokens(held[:index], said),
            answer=pool.tokens([reply]),
            history=held[:index],
            reply=reply,
            tools=said,
        )
        for index, reply in enumerate(held)
        if reply["role"] == "assistant" and index
    )


class Reader:
    """``_names``: how often each was given."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._found: list[Conversation] = []
        self._names: dict[str, int] = {}

    def add(self, document: Document) -> None:
        value = document.value
        messages = told(value)
        if messages is None:
            raise UnreadableError('expected {"messages": [{"role": ..., "content": ...}, ...]}')
        tools = value.get("tools") if isinstance(value, Mapping) else None
        if found := calls(messages, self._pool, tools):
            self._found.append(Conversation(self._name(document), found))

    def _name(self, document: Document) -> str:
        value = document.value
        given = [value.get(name) for name in _IDS] if isinstance(value, Mapping) else []
        stem = document.path.name.split(".", 1)[0]
        place = document.item or document.line
        name = next(
            (str(name) for name in given if isinstance(name, str | int)), f"{stem}-{place}" if place else stem
        )
        times = self._names[name] = self._names.get(name, 0) + 1
        return name if times == 1 else f"{name}#{times}"

    def end(self) -> Reading:
        notes = ["the source has no times: no gaps are known"]
        if growing := _growing(self._found):
            notes.append(
                f"{growing} conversations go on from another one: if each line is a request, the format is "
                "openai_log and must be named"
            )
        return Reading(self._found, estimated=True, notes=notes if self._found else ())


def _growing(found: list[Conversation]) -> int:
    """Conversations that begin with all that another one has, and its answer."""
    wholes: set[int] = set()
    growing = 0
    for conversation in found:
        last = conversation.calls[-1]
        key = 0
        begins = False
        for message in (*(last.history or ()), last.reply):
            key = hash((key, id(message)))
            begins = begins or key in wholes
        growing += begins
        wholes.add(key)
    return growing


FORMAT = Format(
    "messages",
    'conversations as messages, {"messages": [...]} a line or {"id", "messages"} in a list; also ShareGPT',
    "text",
    fits,
    Reader,
)
