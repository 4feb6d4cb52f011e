"""Spans of OpenTelemetry as files have them: OTLP in JSON, or a span a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from antiphon_server.traces.moment import moment

_SCOPES = ("scopeSpans", "instrumentationLibrarySpans")


@dataclass(frozen=True, slots=True)
class Span:
    """``begun``, ``ended``: since the epoch. ``told``: its beginning as the file has it. ``events``: name and
    attributes."""

    name: str
    trace: str | None
    id: str | None
    begun: float | None
    ended: float | None
    attributes: Mapping[str, Any]
    events: tuple[tuple[str, Mapping[str, Any]], ...] = field(default=())
    told: Any = None


def is_spans(value: Any) -> bool:
    return isinstance(value, Mapping) and (_resources(value) is not None or _is_span(value))


def _resources(value: Mapping[str, Any]) -> list[Any] | None:
    """Of OTLP; Tempo has another name for them, and others use that for other things."""
    if isinstance(found := value.get("resourceSpans"), list):
        return found
    found = value.get("batches")
    spanned = isinstance(found, list) and any(
        name in resource for resource in _maps(found) for name in _SCOPES
    )
    return found if spanned else None


def _is_span(value: Mapping[str, Any]) -> bool:
    known = {"traceId", "trace_id", "spanId", "span_id", "context", "startTimeUnixNano", "start_time"}
    return isinstance(value.get("attributes"), list | Mapping) and not known.isdisjoint(value)


def spans(value: Any) -> Iterator[Span]:
    """Of a document."""
    if not isinstance(value, Mapping):
        return
    if (resources := _resources(value)) is None:
        if _is_span(value):
            yield _span(value)
        return
    for resource in _maps(resources):
        for scope in _maps(next((resource[name] for name in _SCOPES if resource.get(name)), None)):
            for span in _maps(scope.get("spans")):
                yield _span(span)


def _maps(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, Mapping))


def _span(span: Mapping[str, Any]) -> Span:
    context = span.get("context")
    context = context if isinstance(context, Mapping) else {}

    def first(*names: str) -> Any:
        return next(
            (found for name in names if (found := span.get(name, context.get(name))) is not None), None
        )

    began = first("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime")
    trace, own = first("traceId", "trace_id"), first("spanId", "span_id", "id")
    return Span(
        str(span.get("name") or ""),
        trace if isinstance(trace, str) else None,
        own if isinstance(own, str) else None,
        moment(began),
        moment(first("endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime")),
        attributes(span.get("attributes")),
        tuple(
            (str(event.get("name") or ""), attributes(event.get("attributes")))
            for event in _maps(span.get("events"))
        ),
        began,
    )


def attributes(value: Any) -> dict[str, Any]:
    """By name, of OTLP's list of pairs or a plain object."""
    if isinstance(value, Mapping):
        return {str(name): item for name, item in value.items()}
    return {str(pair.get("key")): _value(pair.get("value")) for pair in _maps(value)}


def _value(value: Any) -> Any:
    """What OTLP wraps in the name of its type; its integers are text."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    match kind:
        case "arrayValue":
            return [_value(item) for item in _maps(inner.get("values"))] if isinstance(inner, Mapping) else []
        case "kvlistValue":
            return attributes(inner.get("values")) if isinstance(inner, Mapping) else {}
        case _:
            return inner


def under(attributes: Mapping[str, Any], prefix: str) -> list[Any]:
    """A list that stands in attributes ``prefix.0.name``, ``prefix.1.name``, ...: each item an object, lists
    within it likewise."""
    found: dict[str, Any] = {}
    for name, value in attributes.items():
        if name.startswith(prefix + "."):
            _put(found, name[len(prefix) + 1 :].split("."), value)
    listed = _listed(found)
    return listed if isinstance(listed, list) else []


def _put(within: dict[str, Any], names: list[str], value: Any) -> None:
    *before, last = names
    for name in before:
        inner = within.setdefault(name, {})
        if not isinstance(inner, dict):
            return
        within = inner
    within[last] = value


def _listed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    items = {name: _listed(item) for name, item in value.items()}
    if items and all(name.isdecimal() for name in items):
        return [items[name] for name in sorted(items, key=lambda name: (len(name), name))]
    return items
