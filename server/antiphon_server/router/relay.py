"""Decode's event stream on its way to the client: the same bytes, without what is the router's own.

Complete events leave at once; only an event that is still incomplete waits for its rest. Events are not
parsed unless a byte search says that one may hold something to remove.
"""

from __future__ import annotations

import re

import msgspec

from antiphon_server.protocol import HANDLE_OBJECT, Handle
from antiphon_server.router.legs import needs_stripping, strip

_END = re.compile(rb"\r?\n\r?\n")
_DATA = b"data:"
_HANDLE = f'"{HANDLE_OBJECT}"'.encode()
LONGEST_EVENT = 16 * 1024 * 1024
"""Bytes. An event above is passed on as it comes, unless it is the handle."""


class _HandleEvent(msgspec.Struct):
    object: str
    kv_transfer_params: Handle


class Relay:
    """State of one stream. ``handle``: what decode said where the KV lives, once it came. ``done``:
    ``[DONE]`` came."""

    def __init__(self, token_ids: bool) -> None:
        self._token_ids = token_ids
        self._rest = b""
        self.handle: Handle | None = None
        self.done = False

    def feed(self, chunk: bytes) -> bytes:
        """Bytes for the client, maybe none."""
        data = self._rest + chunk if self._rest else chunk
        self._rest = b""
        if not data.endswith(b"\n\n") and not data.endswith(b"\r\n\r\n"):
            cut = _last_end(data)
            data, self._rest = data[:cut], data[cut:]
            if len(self._rest) > LONGEST_EVENT and _HANDLE not in self._rest:
                data, self._rest = data + self._rest, b""
        if not self._has_to_change(data):
            self.done = self.done or data.endswith((b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n"))
            return data
        out = []
        start = 0
        for end in _END.finditer(data):
            out.append(self._event(data[start : end.end()], end.group()))
            start = end.end()
        out.append(data[start:])
        return b"".join(out)

    def finish(self) -> bytes:
        """What was still incomplete when the stream ended, as it is."""
        rest, self._rest = self._rest, b""
        return b"" if _HANDLE in rest else rest

    def _has_to_change(self, data: bytes) -> bool:
        return _HANDLE in data or needs_stripping(data, self._token_ids)

    def _event(self, event: bytes, end: bytes) -> bytes:
        if not event.startswith(_DATA):
            return event
        payload = event[len(_DATA) : -len(end)].strip()
        if payload == b"[DONE]":
            self.done = True
            return event
        if not self._has_to_change(event):
            return event
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
        return event if stripped is payload else b"data: " + stripped + end


def _last_end(data: bytes) -> int:
    cut = data.rfind(b"\n\n")
    crlf = data.rfind(b"\r\n\r\n")
    return max(cut + 2 if cut >= 0 else 0, crlf + 4 if crlf >= 0 else 0)
