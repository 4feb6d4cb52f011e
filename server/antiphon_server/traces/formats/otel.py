"""Spans of model calls: OpenTelemetry's conventions for generative AI, and those of OpenLLMetry and
OpenInference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon_server.traces.error import UnreadableError
from antiphon_server.traces.formats.captured import answer_in, messages_in, tools_in
from antiphon_server.traces.formats.format import Format, Reading
from antiphon_server.traces.formats.spans import Span, is_spans, spans
from antiphon_server.traces.gather import Logged, gathered
from antiphon_server.traces.number import count, number
from antiphon_server.traces.pool import Pool
from antiphon_server.traces.source import Document
from antiphon_server.traces.trace import Call

_CALLS = ("chat", "text_completion", "generate_content", "completion")
_PROMPT = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.token_count.prompt",
    "llm.usage.prompt_tokens",
)
_ANSWER = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "llm.usage.completion_tokens",
)
_CACHED = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "llm.token_count.prompt_details.cache_read",
)
_THOUGHT = ("gen_ai.usage.reasoning.output_tokens", "llm.token_count.completion_details.reasoning")
_MODEL = ("gen_ai.request.model", "gen_ai.response.model", "llm.model_name")
_IDS = (
    "gen_ai.conversation.id",
    "session.id",
    "langfuse.session.id",
    "traceloop.association.properties.conversation_id",
    "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id",
)
_AGENT = ("gen_ai.agent.id", "gen_ai.agent.name")
_TTFT = ("gen_ai.response.time_to_first_chunk", "gen_ai.latency.time_to_first_token")


def fits(value: Any) -> bool:
    return is_spans(value)


class Reader:
    """``_others``: spans of something else. ``_traced``: calls told apart by their trace."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._logged: list[Logged] = []
        self._others = self._failed = self._estimated = self._traced = 0

    def add(self, document: Document) -> None:
        if not is_spans(document.value):
            raise UnreadableError('expected {"resourceSpans": [...]} or a span with "attributes"')
        for span in spans(document.value):
            if not _is_call(span):
                self._others += 1
            elif (logged := self._of(span)) is None:
                self._failed += 1
            else:
                self._logged.append(logged)

    def _of(self, span: Span) -> Logged | None:
        """None where neither lengths nor messages are known."""
        said = span.attributes
        told, reply = messages_in(span), answer_in(span)
        prompt, answer = (_first(said, names) for names in (_PROMPT, _ANSWER))
        if prompt is None and not told:
            return None
        history = self._pool.all(told) if told else None
        tools = self._pool.tools(tools_in(said))
        if reply is not None:
            thought = _first(said, _THOUGHT)
            reply = self._pool.one({**reply, "reasoning_tokens": thought} if thought else reply)
        self._estimated += prompt is None or (answer is None and reply is not None)
        known = answer is not None or reply is not None
        if prompt is None:
            prompt = self._pool.tokens(history or (), tools)
        if answer is None:
            answer = self._pool.tokens([reply]) if reply is not None else 0
        begun, ended = span.begun, span.ended
        call = Call(
            prompt,
            answer,
            at=begun,
            seconds=ended - begun if begun is not None and ended is not None and ended >= begun else None,
            ttft=next((found for name in _TTFT if (found := number(said.get(name))) is not None), None),
            model=_word(said, _MODEL),
            history=history,
            reply=reply,
            tools=tools,
            cached=_first(said, _CACHED),
        )
        conversation = _word(said, _IDS)
        if conversation is None and history is None and span.trace is not None:
            agent = _word(said, _AGENT)
            conversation = f"{span.trace}/{agent}" if agent else span.trace
            self._traced += 1
        return Logged(call, conversation, answered=known, told=span.told)

    def end(self) -> Reading:
        found, notes = gathered(self._logged, self._pool)
        if self._traced:
            notes.append(
                f"{self._traced} calls name no conversation and have no text: each agent's of a trace are one"
            )
        if self._failed:
            notes.append(f"{self._failed} calls without tokens and messages were left out")
        if self._estimated:
            notes.append(
                f"lengths of {self._estimated} calls are counted from their text, as no span says them"
            )
        if self._others:
            notes.append(f"{self._others} spans that are no model calls were left out")
        return Reading(found, estimated=self._estimated > 0, notes=notes)


def _is_call(span: Span) -> bool:
    said = span.attributes
    kind = said.get("gen_ai.operation.name")
    if isinstance(kind, str):
        return kind in _CALLS
    if isinstance(kind := said.get("openinference.span.kind"), str):
        return kind == "LLM"
    kind = said.get("llm.request.type")
    return kind in _CALLS if isinstance(kind, str) else _first(said, _PROMPT) is not None


def _first(said: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((found for name in names if (found := count(said.get(name))) is not None), None)


def _word(said: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((found for name in names if isinstance(found := said.get(name), str) and found), None)


FORMAT = Format(
    "otel",
    "OpenTelemetry spans of model calls: OTLP in JSON (the collector's file exporter), or a span a line",
    "text",
    fits,
    Reader,
)
