"""Decode's event stream on its way to the client: the same bytes, without what is the router's own.

Complete events leave at once; only an event that is still incomplete waits for its rest. Events are not
parsed unless a byte search says that one may hold something to remove.
"""

from __future__ import annotations

import re
from itertools import pairwise

import msgspec

from antiphon_server.protocol import HANDLE_OBJECT, Handle
from antiphon_server.router.errors import RouterError
from antiphon_server.router.legs import FORMS, Surface, needs_stripping, strip

_END = re.compile(rb"\r?\n\r?\n")
_DATA = b"data:"
_NUMBER = re.compile(rb'"sequence_number":\s*(\d+)')
_HANDLE = f'"{HANDLE_OBJECT}"'.encode()
LONGEST_EVENT = 16 * 1024 * 1024
"""Bytes. An event above is passed on as it comes, unless it is the handle."""


class _HandleEvent(msgspec.Struct):
    object: str
    kv_transfer_params: Handle


class Relay:
    """State of one stream. ``handle``: what decode said where the KV lives, once it came. ``done``: the
    stream's last event came."""

    def __init__(self, token_ids: bool, surface: Surface = "chat") -> None:
        self._token_ids = token_ids
        self._surface: Surface = surface
        self._ends = FORMS[surface].ends
        self._rest = b""
        self._relayed = b""
        self.handle: Handle | None = None
        self.done = False

    def feed(self, chunk: bytes) -> bytes:
        """Bytes for the client, maybe none."""
        if self.passes(chunk):
            return chunk
        data = self._rest + chunk if self._rest else chunk
        self._rest = b""
        if not data.endswith(b"\n\n") and not data.endswith(b"\r\n\r\n"):
            cut = _last_end(data)
            data, self._rest = data[:cut], data[cut:]
            if len(self._rest) > LONGEST_EVENT and not self._may_hold_handle(self._rest):
                data, self._rest = data + self._rest, b""
        if not data:
            return data
        if self._has_to_change(data):
            data = self._changed(data)
            self._relayed = data or self._relayed
        else:
            self._note(data)
        return data

    def passes(self, chunk: bytes) -> bool:
        """The chunk goes to the client as it is, and is taken for sent: complete events, of which nothing is
        the router's own. False: :meth:`feed` it."""
        if self._rest or not chunk.endswith((b"\n\n", b"\r\n\r\n")) or self._has_to_change(chunk):
            return False
        self._note(chunk)
        return True

    def _note(self, data: bytes) -> None:
        self.done = self.done or data.startswith(self._ends, _last_event(data))
        self._relayed = data

    def finish(self) -> bytes:
        """What was still incomplete when the stream ended, as it is."""
        rest, self._rest = self._rest, b""
        return b"" if self._may_hold_handle(rest) else rest

    def broken(self, error: RouterError) -> bytes:
        """The event that tells a client why its stream ends here."""
        numbers = _NUMBER.findall(self._relayed) if self._surface == "responses" else []
        return error.event(self._surface, int(numbers[-1]) + 1 if numbers else 0)

    def _may_hold_handle(self, event: bytes) -> bool:
        return _HANDLE in event or (event.startswith(self._ends) and self._surface == "responses")

    def _has_to_change(self, data: bytes) -> bool:
        return _HANDLE in data or needs_stripping(data, self._token_ids)

    def _changed(self, data: bytes) -> bytes:
        out = []
        for event in _events(data):
            self.done = self.done or event.startswith(self._ends)
            out.append(self._event(event) if self._has_to_change(event) else event)
        return b"".join(out)

    def _event(self, event: bytes) -> bytes:
        at = 0 if event.startswith(_DATA) else event.find(b"\n" + _DATA) + 1
        if not event.startswith(_DATA, at):
            return event
        payload = event[at + len(_DATA) :].strip()
        if _HANDLE in payload:
            try:
                found = msgspec.json.decode(payload, type=_HandleEvent)
            except msgspec.DecodeError:
                found = None
            if found is not None and found.object == HANDLE_OBJECT:
                self.handle = found.kv_transfer_params
                return b""
        stripped, handle = strip(payload, self._token_ids)
        if handle is not None:
            self.handle = handle
        if stripped is payload:
            return event
        return event[:at] + b"data: " + stripped + event[event.rindex(payload) + len(payload) :]


def _events(data: bytes) -> list[bytes]:
    """Each event with its end; what is left after the last one comes last."""
    if b"\r" not in data:  # a handle can have 100 kB, and a regular expression takes a millisecond for that
        *events, rest = data.split(b"\n\n")
        return [*(event + b"\n\n" for event in events), rest]
    cuts = [0, *(end.end() for end in _END.finditer(data)), len(data)]
    return [data[start:stop] for start, stop in pairwise(cuts)]


def _last_event(data: bytes) -> int:
    """Where the last event of ``data`` begins, which is complete events."""
    return _last_end(data, len(data) - (4 if data.endswith(b"\r\n\r\n") else 2))


def _last_end(data: bytes, stop: int | None = None) -> int:
    """Where the last complete event before ``stop`` ends."""
    cut = data.rfind(b"\n\n", 0, stop)
    crlf = data.rfind(b"\r\n\r\n", 0, stop)
    return max(cut + 2 if cut >= 0 else 0, crlf + 4 if crlf >= 0 else 0)
