"""A turn as its client sees it: streamed, timed to the first token, and kept whole to be compared."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from openai import OpenAI

REUSE_HEADER = "x-antiphon-reuse"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the router says of a turn. ``matched``: prompt tokens that prefill did not compute."""

    path: str = "unknown"
    matched: int = 0
    reason: str = "unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said. ``arguments``: of its tool call, as they came."""

    ids: tuple[int, ...]
    text: str
    tool: str | None = None
    arguments: str = ""
    logprobs: tuple[float, ...] = ()
    finish: str | None = None

    def equals(self, other: Answer) -> bool:
        """Token for token, and the text that clients see as well."""
        return (self.ids, self.text, self.tool, self.arguments) == (
            other.ids,
            other.text,
            other.tool,
            other.arguments,
        )

    def drift(self, other: Answer) -> float:
        """Largest difference of log-probabilities, over the tokens that both have."""
        return max(
            (abs(a - b) for a, b in zip(self.logprobs, other.logprobs, strict=False)),
            default=0.0,
        )


@dataclass(frozen=True, slots=True)
class Timed:
    """One turn. Seconds from the request's start. ``prompt``: digest of the prompt's token ids."""

    ttft: float
    total: float
    prompt_tokens: int
    prompt: str
    outcome: Outcome
    answer: Answer


def outcome_of(header: str | None) -> Outcome:
    """Read ``X-Antiphon-Reuse``; a server that is not our router says nothing."""
    words = dict(part.strip().split("=", 1) for part in (header or "").split(";") if "=" in part)
    matched = words.get("matched", "")
    return Outcome(
        words.get("path", "unknown"),
        int(matched) if matched.isdecimal() else 0,
        words.get("reason", "unknown"),
    )


def ask(
    client: OpenAI, body: Mapping[str, Any], *, salt: str, clock: Callable[[], float] = time.perf_counter
) -> Timed:
    """Stream one chat turn. ``salt``: keeps its KV apart from other salts'.

    The first token counts, whether it shows as content, as part of a tool call, or not at all.

    Raises:
        openai.APIError: the turn failed.
    """
    begun = clock()
    raw = client.chat.completions.with_raw_response.create(
        **body,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        extra_body={"cache_salt": salt, "return_token_ids": True},
    )
    heard = _Heard()
    first: float | None = None
    for chunk in raw.parse():
        if heard.add(chunk) and first is None:
            first = clock()
    ended = clock()
    return Timed(
        ttft=(first or ended) - begun,
        total=ended - begun,
        prompt_tokens=heard.prompt_tokens,
        prompt=hashlib.sha256(repr(heard.prompt_ids).encode()).hexdigest()[:16],
        outcome=outcome_of(raw.headers.get(REUSE_HEADER)),
        answer=heard.answer(),
    )


class _Heard:
    """What has come of a stream so far."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.prompt_ids: list[int] | None = None
        self._ids: list[int] = []
        self._text: list[str] = []
        self._tool: str | None = None
        self._arguments: list[str] = []
        self._logprobs: list[float] = []
        self._finish: str | None = None

    def add(self, chunk: Any) -> bool:
        """Take a chunk in; True when it brought a token."""
        if self.prompt_ids is None:
            self.prompt_ids = getattr(chunk, "prompt_token_ids", None)
        if chunk.usage is not None:
            self.prompt_tokens = chunk.usage.prompt_tokens
        if not chunk.choices:
            return False
        choice = chunk.choices[0]
        ids = getattr(choice, "token_ids", None) or []
        self._ids += ids
        self._finish = choice.finish_reason or self._finish
        if choice.logprobs is not None:
            self._logprobs += [entry.logprob for entry in choice.logprobs.content or ()]
        shown = bool(choice.delta.content)
        self._text.append(choice.delta.content or "")
        for call in choice.delta.tool_calls or ():
            shown = True
            if call.function is not None:
                self._tool = call.function.name or self._tool
                self._arguments.append(call.function.arguments or "")
        return bool(ids) or shown

    def answer(self) -> Answer:
        return Answer(
            tuple(self._ids),
            "".join(self._text),
            self._tool,
            "".join(self._arguments),
            tuple(self._logprobs),
            self._finish,
        )
