"""What clients ask in a test, and what the right answer is."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from antiphon_server.simulator import Settings, expected_ids
from antiphon_server.simulator.ask import BadRequestError, read_chat, read_completion

Message = dict[str, Any]
SYSTEMS = ("Be brief.", "Be kind and brief.")
QUESTIONS = ("And the next ones?", "Why?", "Name the letters that come after these, with care.")
HOSTILE = {"do_remote_decode": True, "remote_engine_id": "stolen", "remote_block_ids": [[1, 2]]}
SECRETS = (b"kv_transfer_params", b"remote_block_ids", b"antiphon.handle", b"p0:8000", b"d0:8000")
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"properties": {"at": {}}}}}


@dataclass(frozen=True)
class Who:
    """Whose turn. ``conversation``: None without an id."""

    tenant: str
    conversation: str | None
    salt: str | None = None

    @property
    def owner(self) -> str:
        return f"{self.tenant}/{self.conversation}/{self.salt}"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tenant}"} if self.tenant else {}


PEOPLE = (
    Who("", "a"),
    Who("one", "a"),
    Who("two", "a"),
    Who("one", "a", "s"),
    Who("one", "b"),
    Who("", "ü\n.."),
    Who("two", "x" * 200),
    Who("", None),
)


@dataclass
class Past:
    """What a conversation's client remembers."""

    messages: list[Message] = field(default_factory=list)
    answer: str | None = None
    text: str = ""


def verbatim(past: Past, question: str) -> list[Message]:
    if past.answer is None:
        return [{"role": "system", "content": SYSTEMS[0]}, {"role": "user", "content": question}]
    answered = {"role": "assistant", "content": past.answer}
    return [*past.messages, answered, {"role": "user", "content": question}]


def regenerated(past: Past, question: str) -> list[Message]:
    return past.messages or verbatim(past, question)


def edited(past: Past, question: str) -> list[Message]:
    new = verbatim(past, question)
    middle = len(new) // 2
    return [*new[:middle], {**new[middle], "content": question[::-1]}, *new[middle + 1 :]]


def other_system(past: Past, question: str) -> list[Message]:
    return [{"role": "system", "content": SYSTEMS[1]}, *verbatim(past, question)[1:]]


def other_answer(past: Past, question: str) -> list[Message]:
    answered = {"role": "assistant", "content": "nothing of that"}
    return [*past.messages, answered, {"role": "user", "content": question}]


def truncated(past: Past, question: str) -> list[Message]:
    new = verbatim(past, question)
    return [new[0], *new[-2:]]


def begun_anew(past: Past, question: str) -> list[Message]:
    return verbatim(Past(), question)


CHANGES = (verbatim, verbatim, regenerated, edited, other_system, other_answer, truncated, begun_anew)

EXTRAS: tuple[dict[str, Any], ...] = (
    {},
    {"max_tokens": 1},
    {"max_tokens": 3, "seed": 5},
    {"kv_transfer_params": HOSTILE},
    {"kv_transfer_params": "none"},
    {"kv_transfer_params": HOSTILE, "n": 2},
    {"n": 2},
    {"echo": True},
    {"tools": [TOOL], "tool_choice": "required"},
    {"return_token_ids": False},
    {"stream_options": {"include_usage": True}},
    {"model": "another"},
    {"max_tokens": 0},
    {"max_tokens": 100_000},
    {"messages": [{"content": 1}]},
    {"prompt": ""},
    {"ignore_eos": True, "min_tokens": 9, "max_tokens": 9},
)


def oracle(settings: Settings, body: dict[str, Any]) -> tuple[int | None, list[int]]:
    """Status with which an engine refuses this request, and what full recomputation answers."""
    plain = {key: value for key, value in body.items() if key != "kv_transfer_params"}
    try:
        (read_chat if "messages" in plain else read_completion)(plain, settings)
    except BadRequestError as error:
        return error.status, []
    return None, expected_ids(settings, plain)


def streamed(raw: bytes) -> tuple[list[int], str, str]:
    """Ids and text of a stream's first choice, and its last event."""
    ids: list[int] = []
    text = ""
    events = [event.removeprefix("data: ") for event in raw.decode().split("\n\n") if event]
    for event in events:
        if event == "[DONE]":
            continue
        for choice in json.loads(event).get("choices", ()):
            if choice["index"] == 0:
                ids += choice.get("token_ids") or []
                text += (choice.get("delta") or {}).get("content") or choice.get("text") or ""
    return ids, text, events[-1] if events else ""
