"""Sessions of coding agents by the ids of their blocks (kv-cache-tester's, also called weka traces)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon_server.traces.error import TraceError, UnreadableError
from antiphon_server.traces.formats.format import Format, Reading
from antiphon_server.traces.gaps import unsure_note, with_gaps
from antiphon_server.traces.gather import again_note
from antiphon_server.traces.number import count, number
from antiphon_server.traces.pool import Pool, digest
from antiphon_server.traces.source import Document
from antiphon_server.traces.trace import Call, Conversation


def fits(value: Any) -> bool:
    return isinstance(value, Mapping) and "block_size" in value and isinstance(value.get("requests"), list)


def blocks_in(value: Any) -> tuple[int | str, ...] | None:
    """Ids of blocks, or None where these are none."""
    if isinstance(value, list) and all(type(item) is int or isinstance(item, str) for item in value):
        return tuple(value)
    return None


class Reader:
    """``_sizes``: of blocks. ``_names``: digests of the sessions of each. ``_again``: sessions that were
    exported twice. ``_broken``: calls that were left out. ``_unsure``: gaps."""

    def __init__(self, pool: Pool) -> None:
        self._found: list[Conversation] = []
        self._sizes: dict[int, str] = {}
        self._scopes: set[bool] = set()
        self._names: dict[str, set[bytes]] = {}
        self._again = self._broken = self._unsure = 0

    def add(self, document: Document) -> None:
        value = document.value
        size = count(value.get("block_size")) if isinstance(value, Mapping) else None
        if not size or not fits(value):
            raise UnreadableError(
                'expected {"id", "block_size", "requests": [{"t", "in", "out", "hash_ids"}, ...]}'
            )
        self._sizes.setdefault(size, document.where)
        if len(self._sizes) > 1:
            (a, first), (b, other) = list(self._sizes.items())[:2]
            raise TraceError(
                f"{other}: its blocks are of {b} tokens, those of {first} of {a}: read them apart"
            )
        self._scopes.add(value.get("hash_id_scope") == "global")
        name = str(value.get("id") or document.path.name.split(".", 1)[0])
        told, known = digest(value), self._names.setdefault(name, set())
        if told in known:
            self._again += 1
            return
        known.add(told)
        self._add_requests(name if len(known) == 1 else f"{name}#{len(known)}", value, 0.0, None)

    def _add_requests(self, name: str, told: Mapping[str, Any], start: float, parent: str | None) -> None:
        """``told``: a session or a sub-agent. ``start``: added to times."""
        tools, system = count(told.get("tool_tokens")), count(told.get("system_tokens"))
        fixed = tools + system if tools is not None and system is not None else None
        models: dict[str | None, list[Call]] = {}
        agents = 0
        for request in told["requests"]:
            if isinstance(request, Mapping) and isinstance(request.get("requests"), list):
                agents += 1
                begun = number(request.get("t")) or 0.0
                offset = _offset(begun, request["requests"])
                self._add_requests(f"{name}/{agents}", request, start + offset, name)
            elif (call := _call(request, start)) is None:
                self._broken += 1
            else:
                models.setdefault(call.model, []).append(call)
        for index, (model, calls) in enumerate(models.items()):
            timed, unsure = with_gaps(calls)
            self._unsure += unsure
            if index:
                self._found.append(Conversation(f"{name}/{model}", timed, name))
            else:
                self._found.append(Conversation(name, timed, parent, fixed))

    def end(self) -> Reading:
        if not self._found:
            return Reading(())
        notes: list[str] = []
        sessions = sum(map(len, self._names.values()))
        if sessions > 1:
            notes.append("each session's times begin at 0: they do not tell which sessions ran at once")
        if self._again:
            notes.append(again_note(self._again, "sessions"))
        if self._unsure:
            notes.append(unsure_note(self._unsure))
        if self._broken:
            notes.append(f"{self._broken} requests without t, in, out or hash_ids were left out")
        if len(self._scopes) > 1:
            notes.append("some sessions have ids of their own: what sessions share is not known")
        return Reading(
            self._found,
            block_size=next(iter(self._sizes)),
            shared_blocks=self._scopes == {True},
            one_clock=sessions == 1,
            notes=notes,
        )


def _offset(begun: float, inner: list[Any]) -> float:
    """What to add to a sub-agent's times: some tell them since it began, some since the session did."""
    times = [number(request.get("t")) for request in inner if isinstance(request, Mapping)]
    known = [time for time in times if time is not None]
    return begun if known and min(known) < begun else 0.0


def _call(request: Any, start: float) -> Call | None:
    if not isinstance(request, Mapping):
        return None
    at, prompt, answer = number(request.get("t")), count(request.get("in")), count(request.get("out"))
    blocks = blocks_in(request.get("hash_ids"))
    if at is None or prompt is None or answer is None or blocks is None:
        return None
    model = request.get("model")
    return Call(
        prompt,
        answer,
        at=start + at,
        gap=number(request.get("think_time")),
        seconds=number(request.get("api_time")),
        ttft=number(request.get("ttft")),
        model=model if isinstance(model, str) else None,
        blocks=blocks,
    )


FORMAT = Format(
    "coding_agents",
    "sessions of coding agents by lengths and ids of blocks (kv-cache-tester, weka), one a file or a line",
    "blocks",
    fits,
    Reader,
)
