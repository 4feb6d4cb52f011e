"""Requests in whatever form a test has them, as :class:`Recorded`. No library is imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from antiphon._assembly import assembled
from antiphon._body import body_of
from antiphon._outcome import UNKNOWN, outcome_of
from antiphon.testing._history import History
from antiphon.testing._recorded import Recorded, parsed
from antiphon.testing._surfaces.surface import surface_of


def recorded(call: Any) -> Recorded:
    """A ``Recorded`` itself; a request or a response of httpx or httpx2; a call of respx; a pair of headers
    and body, taken for a chat completion.

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(call, Recorded):
        return call
    if hasattr(call, "optional_response"):  # respx, whose calls are tuples
        return _of_request(call.request, call.optional_response)
    if isinstance(call, tuple) and len(call) == 2:
        headers, body = call
        return Recorded("POST", "/chat/completions", _lower(headers), _json(body))
    if hasattr(call, "status_code"):
        return _of_request(call.request, call)
    if hasattr(call, "method") and hasattr(call, "url"):
        return _of_request(call, None)
    raise TypeError(
        f"{call!r} is no request: pass what a FakeRouter recorded, requests or responses of httpx or httpx2, "
        "respx' calls, or pairs of headers and body"
    )


def _of_request(request: Any, response: Any) -> Recorded:
    path = request.url.raw_path.decode("ascii")
    sent = Recorded(request.method, path, _lower(request.headers), _json(body_of(request) or b""))
    if response is None:
        return sent
    answer, reuse = _answer(path.partition("?")[0], body_of(response) or b""), outcome_of(response.headers)
    return replace(
        sent,
        status=response.status_code,
        answer=answer,
        reuse=None if reuse.path == UNKNOWN else reuse,
    )


def _lower(headers: Any) -> dict[str, str]:
    pairs = headers.items() if hasattr(headers, "items") else headers
    return {str(name).lower(): str(value) for name, value in pairs}


def _json(body: Any) -> Any:
    return parsed(body) if isinstance(body, bytes | str) else body


def _answer(path: str, content: bytes) -> History | None:
    """What of a reply belongs into the history; None where it cannot be told."""
    surface, reply = surface_of(path), parsed(content)
    if surface is None:
        return None
    try:
        if isinstance(reply, Mapping):
            return surface.answer(dict(reply))
        return _streamed(list(_events(content)))
    except (LookupError, TypeError, AttributeError):  # an error, or another's words
        return None


def _events(content: bytes) -> Iterator[Mapping[str, Any]]:
    for line in content.decode("utf-8", "replace").splitlines():
        name, _, data = line.partition(":")
        event = parsed(data) if name == "data" else None
        if isinstance(event, Mapping):
            yield event


def _streamed(events: Iterable[Mapping[str, Any]]) -> History | None:
    """Of chat completions, completions and responses; the blocks of ``/messages`` are not put together."""
    choices = [choice for event in events for choice in event.get("choices") or () if not choice["index"]]
    if any("delta" in choice for choice in choices):
        return [assembled([choice["delta"] for choice in choices])]
    if choices:
        return "".join(choice["text"] for choice in choices)
    done = [event["response"] for event in events if event.get("type") == "response.completed"]
    return done[-1]["output"] if done else None
