"""The router's log with ``turn_log``: a line for each turn, without its text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon_server.traces.error import UnreadableError
from antiphon_server.traces.formats.format import Format, Reading
from antiphon_server.traces.gather import Logged, gathered
from antiphon_server.traces.moment import moment
from antiphon_server.traces.number import count, number
from antiphon_server.traces.pool import Pool
from antiphon_server.traces.source import Document
from antiphon_server.traces.trace import Call

SERVED = "turn.served"


def fits(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("event"), str)
        and "level" in value
        and "time" in value
    )


class Reader:
    """``_unknown``: turns whose prompt's length the router did not know. ``_short``: whose answer's."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._logged: list[Logged] = []
        self._unknown = self._short = 0

    def add(self, document: Document) -> None:
        value = document.value
        if not fits(value):
            raise UnreadableError('expected a line of the router\'s log: {"time", "level", "event", ...}')
        if value["event"] != SERVED:
            return
        prompt, served, seconds = (
            count(value.get("tokens")),
            moment(value.get("time")),
            number(value.get("seconds")),
        )
        path, reason = value.get("path"), value.get("reason")
        if prompt is None or not isinstance(path, str):
            raise UnreadableError('expected {"event": "turn.served", "path", "reason", "tokens", ...}')
        if not prompt:
            self._unknown += 1
            return
        answer = count(value.get("answer"))
        self._short += answer is None
        matched = count(value.get("matched")) if path != "cold" else None
        conversation = value.get("conversation")
        call = Call(
            prompt,
            answer or 0,
            at=served - (seconds or 0.0) if served is not None else None,
            seconds=seconds,
            ttft=number(value.get("ttft")),
            shared=matched,
            cached=matched,
            path=path,
            reason=reason if isinstance(reason, str) else None,
        )
        name = conversation if isinstance(conversation, str) else None
        self._logged.append(Logged(call, name, told=value.get("time")))

    def end(self) -> Reading:
        found, notes = gathered(self._logged, self._pool)
        if self._unknown:
            notes.append(f"{self._unknown} turns without the length of their prompt were left out")
        if self._short:
            notes.append(f"{self._short} turns do not say how long the answer was: it counts as empty")
        if any(each.call.path == "cold" for each in self._logged):
            notes.append("of turns computed cold the log does not say what they shared with the last one")
        return Reading(found, notes=notes)


FORMAT = Format(
    "turn_log",
    "the router's log with turn_log: path, reason, tokens, TTFT of each turn, no text",
    "figures",
    fits,
    Reader,
)
