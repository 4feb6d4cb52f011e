"""The handle on streams: stock vLLM 0.31..0.32 computes it but sends it only in whole replies.

``engine_client.generate`` yields it on the last output. A wrapper notes it for the HTTP request that the
output belongs to (context variable), and the sender below adds one SSE event before the stream's end mark.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

import msgspec

from antiphon_server.protocol import HANDLE_OBJECT

Send = Callable[[dict[str, Any]], Any]

END_MARKS = (b"data: [DONE]", b"event: message_stop")
"""What opens the last event of a stream: OpenAI's surfaces, and ``/v1/messages``."""

_noted: ContextVar[dict[str, Any] | None] = ContextVar("antiphon_handle", default=None)


def watch(engine_client: Any) -> None:
    """Wrap ``engine_client.generate``, once, so that it notes handles for :func:`with_handle`."""
    if getattr(engine_client, "_antiphon_watched", False):
        return
    generate = engine_client.generate

    async def noting(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        note = _noted.get()
        async for output in generate(*args, **kwargs):
            if note is not None and output.kv_transfer_params:
                note["handle"] = output.kv_transfer_params
            yield output

    engine_client.generate = noting
    engine_client._antiphon_watched = True


def end_mark(body: bytes) -> int | None:
    """Where the stream's last event begins in ``body``, if it does.

    Only at the start of a line: an answer may quote the mark, but JSON has no line breaks of its own.
    """
    lines = b"\n" + body
    return next((at for mark in END_MARKS if (at := lines.rfind(b"\n" + mark)) >= 0), None)


def event(handle: dict[str, Any]) -> bytes:
    """The SSE event that carries a handle."""
    return b"data: " + msgspec.json.encode({"object": HANDLE_OBJECT, "kv_transfer_params": handle}) + b"\n\n"


def with_handle(send: Send) -> Send:
    """A ``send`` for one HTTP response: puts the handle event before the stream's end mark."""
    note: dict[str, Any] = {}
    _noted.set(note)
    streams = False

    async def sending(message: dict[str, Any]) -> None:
        nonlocal streams
        if message["type"] == "http.response.start":
            streams = any(
                name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in message.get("headers", [])
            )
        elif streams and "handle" in note:
            body = message.get("body", b"")
            at = end_mark(body)
            if at is not None:
                message = {**message, "body": body[:at] + event(note.pop("handle")) + body[at:]}
        await send(message)

    return sending
