"""Ask an endpoint one thing and keep all that makes two answers comparable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAI

MODEL = "tiny"
LOGPROB_TOLERANCE = 1e-3
Messages = Sequence[Any]
"""Chat messages, as dicts."""


@dataclass(frozen=True)
class Answer:
    """``ids``: sampled tokens; ``logprobs``: one per token; ``reuse``: the router's header as a dict."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    calls: tuple[tuple[str, str, str], ...] = ()
    reuse: dict[str, str] = field(default_factory=dict)
    cached: int | None = None
    finish: str | None = None

    @property
    def held(self) -> tuple[int, ...]:
        """Tokens whose KV the decode engine has now: the last sampled token was never fed back."""
        return (self.prompt + self.ids)[:-1]

    @property
    def matched(self) -> int:
        return int(self.reuse["matched"])

    @property
    def message(self) -> dict[str, Any]:
        """The assistant's message, for the next turn's history."""
        calls = [
            {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, name, arguments in self.calls
        ]
        return {"role": "assistant", "content": self.text or None} | ({"tool_calls": calls} if calls else {})


def client_of(url: str) -> OpenAI:
    """A plain client of a router or an engine; it never retries."""
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)


def difference(left: Answer, right: Answer) -> float:
    """Largest difference of log-probabilities; infinite where the tokens differ."""
    if left.ids != right.ids or len(left.logprobs) != len(right.logprobs):
        return float("inf")
    return max((abs(a - b) for a, b in zip(left.logprobs, right.logprobs, strict=True)), default=0.0)


def assert_same(answer: Answer, reference: Answer, what: str) -> None:
    assert answer.ids == reference.ids, f"{what}: {answer.text!r} instead of {reference.text!r}"
    gap = difference(answer, reference)
    assert gap <= LOGPROB_TOLERANCE, f"{what}: log-probabilities differ by {gap}"


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common prefix."""
    same = 0
    while same < min(len(left), len(right)) and left[same] == right[same]:
        same += 1
    return same


def chat(
    client: OpenAI, messages: Messages, *, salt: str, tokens: int = 16, stream: bool = False, **more: Any
) -> Answer:
    """One chat completion, greedy."""
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=list(messages),
        max_tokens=tokens,
        temperature=0,
        logprobs=True,
        stream=stream,
        **_streaming(stream),
        extra_body={"cache_salt": salt, "return_token_ids": True},
        **more,
    )
    return collect(raw.headers, raw.parse(), stream)


def complete(client: OpenAI, prompt: str, *, salt: str, tokens: int = 16, stream: bool = False) -> Answer:
    """One text completion, greedy."""
    raw = client.completions.with_raw_response.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=tokens,
        temperature=0,
        logprobs=1,
        stream=stream,
        **_streaming(stream),
        extra_body={"cache_salt": salt, "return_token_ids": True},
    )
    return collect(raw.headers, raw.parse(), stream)


def _streaming(stream: bool) -> dict[str, Any]:
    return {"stream_options": {"include_usage": True}} if stream else {}


def collect(headers: Any, parsed: Any, stream: bool) -> Answer:
    """One shape for whole replies and streams, chat and completions. ``parsed``: the client's own types."""
    chunks: Iterable[Any] = parsed if stream else [parsed]
    prompt: list[int] = []
    ids: list[int] = []
    logprobs: list[float] = []
    text: list[str] = []
    calls: dict[int, list[str]] = {}
    cached = finish = None
    for chunk in chunks:
        if chunk.usage and chunk.usage.prompt_tokens_details:
            cached = chunk.usage.prompt_tokens_details.cached_tokens
        prompt += getattr(chunk, "prompt_token_ids", None) or []
        for choice in chunk.choices:
            prompt += getattr(choice, "prompt_token_ids", None) or []
            ids += getattr(choice, "token_ids", None) or []
            finish = choice.finish_reason or finish
            logprobs += _logprobs(choice.logprobs)
            part = getattr(choice, "delta" if stream else "message", None)
            text.append((part.content if part is not None else getattr(choice, "text", "")) or "")
            for place, call in enumerate((part.tool_calls if part is not None else None) or []):
                entry = calls.setdefault(getattr(call, "index", place), ["", "", ""])
                entry[0] += call.id or ""
                entry[1] += call.function.name or ""
                entry[2] += call.function.arguments or ""
    return Answer(
        tuple(prompt),
        tuple(ids),
        tuple(logprobs),
        "".join(text),
        tuple((i, name, arguments) for i, name, arguments in calls.values()),
        parse_reuse(headers.get("x-antiphon-reuse")),
        cached,
        finish,
    )


def parse_reuse(header: str | None) -> dict[str, str]:
    """``path=reuse; matched=64; reason=ok`` as a dict."""
    return dict(part.strip().split("=", 1) for part in header.split(";")) if header else {}


def _logprobs(logprobs: Any) -> list[float]:
    if logprobs is None:
        return []
    if getattr(logprobs, "token_logprobs", None) is not None:
        return list(logprobs.token_logprobs)
    return [token.logprob for token in logprobs.content or []]
