"""A turn as its client sees it: streamed, timed to the first token, and kept whole to be compared."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from openai import AsyncOpenAI, OpenAI

REUSE_HEADER = "x-antiphon-reuse"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the router says of a turn. ``matched``: prompt tokens that prefill did not compute. ``held``:
    tokens whose KV decode still had; None where nothing was kept, or nothing is said."""

    path: str = "unknown"
    matched: int = 0
    reason: str = "unknown"
    held: int | None = None


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
    """One turn. Seconds from the request's start. ``prompt``: digest of the prompt's token ids. ``cached``:
    prompt tokens that were not computed, as the usage says. ``times``: of each chunk that brought tokens."""

    ttft: float
    total: float
    prompt_tokens: int
    prompt: str
    outcome: Outcome
    answer: Answer
    cached: int | None = None
    times: tuple[float, ...] = ()

    @property
    def waits(self) -> tuple[float, ...]:
        """Inter-token latencies: seconds between chunks, without the first token's."""
        return tuple(later - earlier for earlier, later in pairwise(self.times))


def outcome_of(header: str | None) -> Outcome:
    """Read ``X-Antiphon-Reuse``; a server that is not our router says nothing."""
    words = dict(part.strip().split("=", 1) for part in (header or "").split(";") if "=" in part)
    return Outcome(
        words.get("path", "unknown"),
        _count(words.get("matched")) or 0,
        words.get("reason", "unknown"),
        _count(words.get("held")),
    )


def ask(
    client: OpenAI, body: Mapping[str, Any], *, salt: str, clock: Callable[[], float] = time.perf_counter
) -> Timed:
    """Stream one chat turn. ``salt``: keeps its KV apart from other salts'.

    The first token counts, whether it shows as content, as part of a tool call, or not at all.

    Raises:
        openai.APIError: the turn failed.
    """
    heard = _Heard(clock)
    raw = client.chat.completions.with_raw_response.create(**_streamed(body, salt))
    for chunk in raw.parse():
        heard.add(chunk)
    return heard.timed(raw.headers.get(REUSE_HEADER))


async def ask_async(
    client: AsyncOpenAI, body: Mapping[str, Any], *, salt: str, clock: Callable[[], float] = time.perf_counter
) -> Timed:
    """As :func:`ask`, among others of the same event loop."""
    heard = _Heard(clock)
    raw = await client.chat.completions.with_raw_response.create(**_streamed(body, salt))
    async for chunk in raw.parse():
        heard.add(chunk)
    return heard.timed(raw.headers.get(REUSE_HEADER))


def _streamed(body: Mapping[str, Any], salt: str) -> dict[str, Any]:
    return {
        **body,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "extra_body": {**body.get("extra_body", {}), "cache_salt": salt, "return_token_ids": True},
    }


def _count(word: str | None) -> int | None:
    return int(word) if word is not None and word.isdecimal() else None


class _Heard:
    """What has come of a stream so far. Its time begins with it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun = clock()
        self._times: list[float] = []
        self._prompt_tokens = 0
        self._cached: int | None = None
        self._prompt_ids: list[int] | None = None
        self._ids: list[int] = []
        self._text: list[str] = []
        self._tool: str | None = None
        self._arguments: list[str] = []
        self._logprobs: list[float] = []
        self._finish: str | None = None

    def add(self, chunk: Any) -> None:
        """Take a chunk in."""
        if self._prompt_ids is None:
            self._prompt_ids = getattr(chunk, "prompt_token_ids", None)
        if chunk.usage is not None:
            self._prompt_tokens = chunk.usage.prompt_tokens
            details = chunk.usage.prompt_tokens_details
            self._cached = details.cached_tokens if details is not None else self._cached
        if chunk.choices and self._add(chunk.choices[0]):
            self._times.append(self._elapsed())

    def timed(self, header: str | None) -> Timed:
        """The turn, now that the stream has ended. ``header``: the router's word on it."""
        total = self._elapsed()
        return Timed(
            ttft=self._times[0] if self._times else total,
            total=total,
            prompt_tokens=self._prompt_tokens,
            prompt=hashlib.sha256(repr(self._prompt_ids).encode()).hexdigest()[:16],
            outcome=outcome_of(header),
            answer=Answer(
                tuple(self._ids),
                "".join(self._text),
                self._tool,
                "".join(self._arguments),
                tuple(self._logprobs),
                self._finish,
            ),
            cached=self._cached,
            times=tuple(self._times),
        )

    def _add(self, choice: Any) -> bool:
        """True when it brought a token."""
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

    def _elapsed(self) -> float:
        return self._clock() - self._begun
