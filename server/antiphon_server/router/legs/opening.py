"""How a stream begins: whether decode has really begun to answer, or has only taken the request.

Engines open a stream before KV that was handed over has arrived, or in the same breath as the error that it
did not. Until more has come, nothing is lost with the stream: the turn can be served elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from antiphon_server.router.legs.form import Form, Surface
from antiphon_server.router.legs.surfaces import FORMS

_END = re.compile(rb"\r?\n\r?\n")
_ERROR = re.compile(rb'(?:event: error\r?\ndata: |data: \{"error")')


@dataclass(frozen=True, slots=True)
class Failure:
    """An engine's error in place of a stream. ``payload``: its JSON."""

    status: int
    payload: bytes


def begun(surface: Surface, data: bytes) -> bool:
    """``data``, all of a stream so far, says more than that the request was taken."""
    return _telling(FORMS[surface], data) is not None


def failure(surface: Surface, data: bytes) -> Failure | None:
    """The error that a stream begins with, if it does: an engine's fault, not the request's."""
    if b"error" not in data:
        return None
    event = _telling(FORMS[surface], data)
    if event is None or _ERROR.match(event) is None:
        return None
    payload = event[event.index(b"data: ") + len(b"data: ") :].split(b"\n", 1)[0].strip()
    try:
        error = msgspec.json.decode(payload)["error"]
        # Anthropic's form has no code.
        code = error.get("code", 500)
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return Failure(code, payload) if isinstance(code, int) and 500 <= code < 600 else None


def _telling(form: Form, data: bytes) -> bytes | None:
    """The first event that is not an opening one; None if there is none yet. It may be incomplete, but by no
    more than its rest."""
    for event in _events(data):
        if event.startswith((b":", *form.opening)):
            continue
        if form.role is not None and form.role in event:
            continue
        return event
    return None


def _events(data: bytes) -> Iterator[bytes]:
    start = 0
    for end in _END.finditer(data):
        yield data[start : end.end()]
        start = end.end()
