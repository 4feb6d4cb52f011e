"""What the engine says: a script of what is fixed, and letters that the KV decides."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from antiphon_server.simulator.kv import extend, follow, root
from antiphon_server.simulator.settings import Settings
from antiphon_server.simulator.template import CALL_CLOSING, THINK, THOUGHT, call_opening
from antiphon_server.simulator.tokens import END_TOKEN

WORD = 6
"""Every sixth letter is a space."""


class Part(StrEnum):
    """Where a token of the answer shows up in the reply."""

    CONTENT = "content"
    REASONING = "reasoning"
    ARGUMENTS = "arguments"
    HIDDEN = "hidden"


class Slot(NamedTuple):
    """One token to come: ``token`` where the form demands it, None where the KV decides."""

    part: Part
    token: int | None = None


def text_script(settings: Settings, least: int = 0) -> list[Slot]:
    """A plain answer of the engine's usual length, or of ``least`` letters and no end."""
    slots = [*_reasoning(settings), *[Slot(Part.CONTENT)] * settings.answer_tokens]
    if len(slots) < least:
        return [*slots, *[Slot(Part.CONTENT)] * (least - len(slots))]
    return [*slots, Slot(Part.HIDDEN, END_TOKEN)]


def call_script(settings: Settings, function: Mapping[str, Any]) -> list[Slot]:
    """A call of the function, arguments filled after its JSON schema."""
    return [
        *_reasoning(settings),
        *_fixed(Part.HIDDEN, call_opening(function["name"])),
        *_arguments(function.get("parameters") or {}),
        *_fixed(Part.HIDDEN, CALL_CLOSING),
        Slot(Part.HIDDEN, END_TOKEN),
    ]


def sample(state: bytes, slot: Slot, position: int, nonce: int = 0) -> tuple[int, float]:
    """The next token and its log-probability, both functions of all KV before it."""
    number = int.from_bytes(state, "little") ^ (nonce * 0x9E3779B97F4A7C15)
    logprob = -((number >> 16) % 4096) / 4096
    if slot.token is not None:
        return slot.token, logprob
    if slot.part is not Part.ARGUMENTS and position % WORD == WORD - 1:
        return ord(" "), logprob
    return ord("a") + number % 26, logprob


def recomputed(
    settings: Settings,
    prompt: Sequence[int],
    script: Sequence[Slot],
    limit: int | None = None,
    nonce: int = 0,
) -> list[int]:
    """The tokens that an engine without any cache or transfer samples: what every reuse must give as well."""
    tokens = list(prompt)
    size = settings.block_size
    start = root(settings.model)
    for position, slot in enumerate(script[:limit]):
        if position == 0:
            for index in range(len(tokens) // size):
                start = follow(start, extend(start, (), tuple(tokens[index * size : (index + 1) * size])))
        rest = tuple(tokens[len(tokens) // size * size :])
        state = follow(start, extend(start, (), rest)) if rest else start
        token, _ = sample(state, slot, position, nonce)
        tokens.append(token)
        if len(tokens) % size == 0:
            start = follow(start, extend(start, (), tuple(tokens[-size:])))
    return tokens[len(prompt) :]


def _reasoning(settings: Settings) -> list[Slot]:
    if not settings.reasoning_tokens:
        return []
    thought = [Slot(Part.REASONING)] * settings.reasoning_tokens
    return [*_fixed(Part.HIDDEN, THINK), *thought, *_fixed(Part.HIDDEN, THOUGHT)]


def _fixed(part: Part, text: str) -> list[Slot]:
    return [Slot(part, byte) for byte in text.encode()]


def _arguments(schema: Mapping[str, Any]) -> list[Slot]:
    properties: Mapping[str, Any] = schema.get("properties") or {}
    slots = _fixed(Part.ARGUMENTS, "{")
    for index, (name, kind) in enumerate(properties.items()):
        slots += _fixed(Part.ARGUMENTS, f'{", " if index else ""}"{name}": ')
        slots += _value(kind)
    return slots + _fixed(Part.ARGUMENTS, "}")


def _value(schema: Mapping[str, Any]) -> list[Slot]:
    if schema.get("enum"):
        return _fixed(Part.ARGUMENTS, json.dumps(schema["enum"][0]))
    literal = {"integer": "7", "number": "0.5", "boolean": "true", "array": "[]", "null": "null"}
    match schema.get("type", "string"):
        case "object":
            return _arguments(schema)
        case "string":
            quote = _fixed(Part.ARGUMENTS, '"')
            return [*quote, *[Slot(Part.ARGUMENTS)] * 8, *quote]
        case kind:
            return _fixed(Part.ARGUMENTS, literal.get(str(kind), "null"))
