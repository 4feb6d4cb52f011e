"""Logs of requests to OpenAI's endpoints and of responses, as clients, proxies and platforms write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from antiphon_server.traces.error import UnreadableError
from antiphon_server.traces.formats import messages
from antiphon_server.traces.formats.embedded import opened
from antiphon_server.traces.formats.exchange import Answered, Asked, answered, asked
from antiphon_server.traces.formats.format import Format, Reading
from antiphon_server.traces.formats.record import conversation, failed, parent, time_told, times, trace
from antiphon_server.traces.formats.usage import Usage, usage_in
from antiphon_server.traces.gather import Logged, gathered
from antiphon_server.traces.pool import Pool
from antiphon_server.traces.source import Document
from antiphon_server.traces.trace import Call, Message

_REQUESTS = (
    "request",
    "request_body",
    "requestBody",
    "reqPayload",
    "providerRequest",
    "kwargs",
    "body",
    "inputs",
    "input",
)
_RESPONSES = (
    "response",
    "response_body",
    "responseBody",
    "respPayload",
    "providerResponse",
    "outputs",
    "output",
)
_WITHIN = ("body", "json", "payload")
"""Where a request or response stands in what is logged of it."""


def _parts(record: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[Any]:
    """What stands under these names, also as text: first what is within it, then itself."""
    for name in names:
        value = opened(record.get(name))
        if isinstance(value, Mapping):
            inner = (opened(value.get(within)) for within in _WITHIN)
            yield from (part for part in inner if isinstance(part, Mapping))
        if value is not None:
            yield value


def _request(record: Mapping[str, Any]) -> tuple[Asked, Mapping[str, Any], bool] | None:
    """The request, where it stands, and whether that is the record itself."""
    for part in _parts(record, _REQUESTS):
        if isinstance(part, Mapping) and (found := asked(part)) is not None:
            return found, part, False
    found = asked(record)
    return (found, record, True) if found is not None else None


def _response(record: Mapping[str, Any]) -> Answered | None:
    for part in _parts(record, _RESPONSES):
        if (found := answered(part)) is not None:
            return found
    return None


def fits(value: Any) -> bool:
    """Conversations that are only messages are none."""
    if not isinstance(value, Mapping):
        return False
    found = _request(value)
    if found is None:
        return "custom_id" in value and isinstance(value.get("response"), Mapping)
    wrapped = not found[2] or _response(value) is not None or usage_in(value.get("usage")) != Usage()
    if wrapped or "prompt_tokens" in value:
        return True
    ends = found[0].messages[-1].get("role") != "assistant"
    return ends and ("model" in value or not messages.fits(value))


class Reader:
    """``_halves``: requests and responses of batches, by their common id. ``_stored``: responses that
    requests may go on from."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._logged: list[Logged] = []
        self._halves: dict[str, Mapping[str, Any]] = {}
        self._stored: dict[str, tuple[Message, ...]] = {}
        self._failed = self._others = self._estimated = 0

    def add(self, document: Document) -> None:
        record = document.value
        if not isinstance(record, Mapping):
            raise UnreadableError("expected an object with a request, a response, or both")
        if isinstance(kind := record.get("run_type"), str) and kind not in ("llm", "chat_model"):
            self._others += 1
            return
        if isinstance(half := record.get("custom_id"), str) and ("body" in record) != ("response" in record):
            other = self._halves.pop(half, None)
            if other is None or ("body" in other) == ("body" in record):
                self._halves[half] = record
                return
            record = {**other, **record}
        self._add(record)

    def _add(self, record: Mapping[str, Any]) -> None:
        if failed(record):
            self._failed += 1
            return
        found, response = _request(record), _response(record)
        if found is None and response is None:
            raise UnreadableError('expected a request with "messages", "input" or "prompt", or a response')
        request = found[0] if found else Asked(())
        response = response or Answered(None, Usage())
        usage = _best(response.usage, record)
        history = self._history(request)
        if usage.prompt is None and history is None:
            raise UnreadableError('expected "usage", as the messages are not all in the log')
        self._logged.append(self._of(record, found[1] if found else {}, request, response, usage, history))

    def _history(self, request: Asked) -> tuple[Message, ...] | None:
        if not request.messages:
            return None
        history = self._pool.all(request.messages)
        if request.previous is None:
            return history
        stored = self._stored.get(request.previous)
        return (*stored, *history) if stored is not None else None

    def _of(
        self,
        record: Mapping[str, Any],
        body: Mapping[str, Any],
        request: Asked,
        response: Answered,
        usage: Usage,
        history: tuple[Message, ...] | None,
    ) -> Logged:
        reply = self._pool.one(response.reply) if response.reply is not None else None
        at, seconds, ttft = times(record, response.created)
        tools = self._pool.tools(request.tools or _options(record).get("tools"))
        prompt, answer = usage.prompt, usage.answer
        self._estimated += prompt is None or (answer is None and reply is not None)
        if prompt is None:
            prompt = self._pool.tokens(history or (), tools)
        if answer is None:
            answer = self._pool.tokens([reply]) if reply is not None else 0
        call = Call(
            prompt,
            answer,
            at=at,
            seconds=seconds,
            ttft=ttft,
            model=request.model or response.model or _model(record),
            history=history,
            reply=reply,
            tools=tools,
            cached=usage.cached,
        )
        if response.id is not None and history is not None and reply is not None and "output" in _raw(record):
            self._stored[response.id] = (*history, reply)
        known = usage.answer is not None or reply is not None
        told = time_told(record, response.created)
        return Logged(call, conversation(record, body), trace(record), parent(record, body), known, told)

    def end(self) -> Reading:
        for half in self._halves.values():
            try:
                self._add(half)
            except UnreadableError:
                self._failed += 1
        self._halves.clear()
        found, notes = gathered(self._logged, self._pool)
        if self._failed:
            notes.append(f"{self._failed} calls that failed were left out")
        if self._others:
            notes.append(f"{self._others} runs that are no model calls were left out")
        if self._estimated:
            notes.append(
                f"lengths of {self._estimated} calls are counted from text, as the log does not say them"
            )
        return Reading(found, estimated=self._estimated > 0, notes=notes)


def _raw(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((part for part in _parts(record, _RESPONSES) if isinstance(part, Mapping)), {})


def _options(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A request's settings where they stand beside it."""
    extra = record.get("extra")
    found = extra.get("invocation_params") if isinstance(extra, Mapping) else record.get("model_parameters")
    return found if isinstance(found, Mapping) else {}


def _model(record: Mapping[str, Any]) -> str | None:
    said = record.get("model") or _options(record).get("model") or _options(record).get("model_name")
    return said if isinstance(said, str) else None


def _best(usage: Usage, record: Mapping[str, Any]) -> Usage:
    """A response's; else the record's own."""
    if usage != Usage():
        return usage
    beside = usage_in(record.get("usage"))
    return beside if beside != Usage() else usage_in(record)


FORMAT = Format(
    "openai_log",
    "logs of requests and responses of OpenAI's endpoints: own, LiteLLM, batches, LangSmith, Helicone",
    "text",
    fits,
    Reader,
)
