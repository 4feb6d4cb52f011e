"""What logs say beside a request and its response: whose it is, when it was, whether it failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from antiphon_server.traces.moment import moment
from antiphon_server.traces.number import number

_IDS = (
    "conversation_id",
    "conversationId",
    "session_id",
    "sessionId",
    "thread_id",
    "threadId",
    "chat_id",
    "litellm_session_id",
    "prompt_cache_key",
    "conversation",
)
_HEADERS = (
    "x-conversation-id",
    "x-session-id",
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "x-session-affinity",
    "session-id",
    "helicone-session-id",
)
_PARENTS = ("parent_session_id", "parent_conversation_id", "x-parent-session-id")
_STARTS = (
    "start_time",
    "startTime",
    "request_created_at",
    "requestedAt",
    "time",
    "timestamp",
    "created_at",
    "created",
)
_ENDS = ("end_time", "endTime", "response_created_at", "receivedAt")
_FIRSTS = ("completionStartTime", "first_token_time")
_SPANS = ("seconds", "duration", "latency", "latency_s", "elapsed", "response_time")
_SPANS_MS = ("latency_ms", "duration_ms", "delay_ms", "elapsed_ms")


def _text(value: Any) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("id")
    if isinstance(value, str) or type(value) is int:
        return str(value) or None
    return None


def _places(record: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Where an id may stand, the request's own first. LangSmith's session is a project."""
    extra = record.get("extra")
    own = {k: v for k, v in record.items() if k != "session_id"} if "run_type" in record else record
    request = record.get("request")
    for place in (
        body,
        body.get("metadata"),
        own,
        record.get("metadata"),
        extra.get("metadata") if isinstance(extra, Mapping) else None,
        record.get("request_properties"),
        record.get("properties"),
        record.get("headers"),
        record.get("request_headers"),
        request.get("headers") if isinstance(request, Mapping) else None,
    ):
        if isinstance(place, Mapping):
            yield place


def _first(record: Mapping[str, Any], body: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    for place in _places(record, body):
        lower = {str(name).lower(): value for name, value in place.items() if "-" in str(name)}
        for name in names:
            if (found := _text(place.get(name, lower.get(name)))) is not None:
                return found
    return None


def conversation(record: Mapping[str, Any], body: Mapping[str, Any]) -> str | None:
    """Its id. ``body``: the request's."""
    return _first(record, body, (*_IDS, *_HEADERS))


def parent(record: Mapping[str, Any], body: Mapping[str, Any]) -> str | None:
    return _first(record, body, _PARENTS)


def trace(record: Mapping[str, Any]) -> str | None:
    """An id that several calls of a conversation may have, or each a different one."""
    return _text(record.get("trace_id"))


def times(record: Mapping[str, Any], created: Any) -> tuple[float | None, float | None, float | None]:
    """When it began (since the epoch), seconds to the end and to the first token. ``created``: the
    response's."""
    at = next((found for name in _STARTS if (found := moment(record.get(name))) is not None), None)
    end = next((found for name in _ENDS if (found := moment(record.get(name))) is not None), None)
    first = next((found for name in _FIRSTS if (found := moment(record.get(name))) is not None), None)
    seconds = next((found for name in _SPANS if (found := number(record.get(name))) is not None), None)
    if seconds is None:
        spans = (number(record.get(name)) for name in _SPANS_MS)
        seconds = next((found / 1000.0 for found in spans if found is not None), None)
    if at is not None and end is not None and end >= at:
        seconds = end - at
    elif at is None and end is not None and seconds is not None:
        at = end - seconds
    ttft = number(record.get("ttft"))
    if ttft is None:
        in_ms = number(record.get("ttft_ms"))
        if in_ms is None and "request_created_at" in record:
            in_ms = number(record.get("time_to_first_token"))
        ttft = in_ms / 1000.0 if in_ms is not None else None
    if ttft is None and first is not None and at is not None and first >= at:
        ttft = first - at
    return (moment(created) if at is None else at), seconds, ttft


def time_told(record: Mapping[str, Any], created: Any) -> Any:
    """What stands where its time should, as it stands there; None where nothing does."""
    said = (*(record.get(name) for name in (*_STARTS, *_ENDS)), created)
    return next((found for found in said if found is not None and found != ""), None)


def failed(record: Mapping[str, Any]) -> bool:
    """Whether no answer came."""
    response = record.get("response")
    if isinstance(response, Mapping):
        code = number(response.get("status_code", response.get("status")))
        if code is not None and code >= 400:
            return True
        if response.get("error") and not response.get("choices") and not response.get("body"):
            return True
    code = number(record.get("status_code", record.get("response_status")))
    if code is not None and code >= 400:
        return True
    return record.get("status") in ("failure", "error") or (bool(record.get("error")) and not response)
