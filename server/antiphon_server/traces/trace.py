"""Traffic in one form, whatever it was logged in: conversations, and the model calls of each in order.

A call says what its source says. Sources differ in how they tell which part of a prompt repeats: some have
the text, some have ids of blocks, some have only a figure. :mod:`antiphon_server.traces.prefix` puts that
into tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]
"""As in an OpenAI chat request."""


@dataclass(frozen=True, slots=True)
class Call:
    """One model call. Times in seconds, lengths in tokens; None: the source does not say.

    ``at``: when it began, since the trace began. ``gap``: from the end of the conversation's last answer to
    this request. ``seconds``: from the request to the end of the answer. ``ttft``: to its first token.
    ``prompt``, ``answer``: lengths. ``history``: the request's messages. ``reply``: what the model answered.
    ``tools``: the request's tools. ``blocks``: ids of the prompt's blocks, in order; the same id is the same
    block, with all that stands before it. ``shared``: tokens with which this prompt repeats the beginning of
    the last prompt and its answer, where the source has that as a figure. ``cached``: prompt tokens that
    the server did not compute. ``path``, ``reason``: the router's words.
    """

    prompt: int
    answer: int
    at: float | None = None
    gap: float | None = None
    seconds: float | None = None
    ttft: float | None = None
    model: str | None = None
    history: tuple[Message, ...] | None = None
    reply: Message | None = None
    tools: tuple[Mapping[str, Any], ...] | None = None
    blocks: tuple[int | str, ...] | None = None
    shared: int | None = None
    cached: int | None = None
    path: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """``calls``: in order of time. ``parent``: name of the conversation that this one was begun from.
    ``fixed``: tokens of the tools and the system prompt, with which its prompts begin; None: not told.
    ``guessed``: its calls name no conversation, and were put together by what they repeat."""

    name: str
    calls: tuple[Call, ...]
    parent: str | None = None
    fixed: int | None = None
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """``format``: name of what it was read from. ``block_size``: tokens of a block; None where there are no
    blocks. ``shared_blocks``: ids mean the same in all conversations, not only within one. ``estimated``:
    lengths are counted from text at so many bytes a token, as no source said them. ``one_clock``: times of
    all conversations are of one clock; else they do not tell what ran at once. ``notes``: what was left out
    or assumed, for people to read."""

    format: str
    conversations: tuple[Conversation, ...]
    block_size: int | None = None
    shared_blocks: bool = False
    estimated: bool = False
    one_clock: bool = True
    notes: tuple[str, ...] = ()
