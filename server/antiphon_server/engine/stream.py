"""What stock vLLM 0.31..0.32 does not say on streams: the handle, and at the head the prompt's figures.

``engine_client.generate`` yields the prompt's length and cached part on the first output and the handle on
the last. A wrapper notes them for the HTTP request that the output belongs to (context variable). The sender
below holds the head of a reply until its first bytes, adds headers, and adds one SSE event before the end
mark.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

import msgspec

from antiphon_server.protocol import HANDLE_OBJECT, LEG_HEADER, PROMPT_HEADER, Prompt

Send = Callable[[dict[str, Any]], Any]

END_MARKS = (b"data: [DONE]", b"event: message_stop")
"""What opens the last event of a stream: OpenAI's surfaces, and ``/v1/messages``."""

_noted: ContextVar[dict[str, Any] | None] = ContextVar("antiphon_handle", default=None)


def watch(engine_client: Any) -> None:
    """Wrap ``engine_client.generate``, once, so that it notes handles for :func:`with_notes`."""
    if getattr(engine_client, "_antiphon_watched", False):
        return
    generate = engine_client.generate

    async def noting(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        note = _noted.get()
        async for output in generate(*args, **kwargs):
            if note is not None:
                if "prompt" not in note:
                    tokens = len(output.prompt_token_ids or ())
                    note["prompt"] = Prompt(tokens, output.num_cached_tokens or 0)
                if output.kv_transfer_params:
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


def with_notes(send: Send, leg: bytes | None) -> Send:
    """A ``send`` for one HTTP response: adds the headers of the prompt and of the leg, and the handle before
    the end mark. ``leg``: the request's ``X-Request-Id``."""
    note: dict[str, Any] = {}
    _noted.set(note)
    streams = False
    head: dict[str, Any] | None = None

    async def sending(message: dict[str, Any]) -> None:
        nonlocal streams, head
        if message["type"] == "http.response.start":
            streams = any(
                name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in message.get("headers", [])
            )
            head = message
            return
        if head is not None:
            start, head = head, None
            await send(_with_headers(start, note.get("prompt"), leg))
        if streams and "handle" in note:
            body = message.get("body", b"")
            at = end_mark(body)
            if at is not None:
                message = {**message, "body": body[:at] + event(note.pop("handle")) + body[at:]}
        await send(message)

    return sending


def _with_headers(start: dict[str, Any], prompt: Prompt | None, leg: bytes | None) -> dict[str, Any]:
    added = []
    if prompt is not None:
        added.append((PROMPT_HEADER.lower().encode("ascii"), prompt.header().encode("ascii")))
    if leg is not None:
        added.append((LEG_HEADER.lower().encode("ascii"), leg))
    return {**start, "headers": [*start.get("headers", []), *added]}
