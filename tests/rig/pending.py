"""A chat request whose client may look at the stream's beginning, wait for the end, or leave at any time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from openai.types.chat import ChatCompletion, ChatCompletionChunk

from rig.answers import MODEL, Answer, Messages, collect

BOUND_S = 60.0
"""Within which a client has an answer or an error, whatever happens to the engines."""


class FailedError(Exception):
    """The client was told that its turn failed. ``status``: of the reply; 200 where a stream had begun."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(f"{status}: {error}")
        self.status = status
        self.error = error


class Pending:
    """Sent on creation. One socket, no thread: nothing is read before somebody asks."""

    def __init__(
        self,
        url: str,
        messages: Messages,
        *,
        conversation: str,
        salt: str,
        tokens: int = 16,
        stream: bool = False,
        **more: Any,
    ) -> None:
        body = {
            "model": MODEL,
            "messages": list(messages),
            "max_tokens": tokens,
            "temperature": 0,
            "logprobs": True,
            "return_token_ids": True,
            "cache_salt": salt,
            "conversation_id": conversation,
            "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
            **more,
        }
        self._stream = stream
        self._events: list[dict[str, Any]] = []
        self._reply: HTTPResponse | None = None
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=BOUND_S)
        headers = {"content-type": "application/json"}
        self._connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)

    def leave(self) -> None:
        """Hang up, if it has not ended."""
        if self._reply is not None:
            self._reply.close()
        self._connection.close()

    def begun(self, events: int = 3) -> None:
        """Read so many events of the stream."""
        reading = self._reading()
        for _ in range(events):
            next(reading)

    def answer(self) -> Answer:
        """Read to the end.

        Raises:
            FailedError: what the client was told.
        """
        try:
            reply = self._answered()
            if not self._stream:
                return collect(reply.headers, ChatCompletion.model_validate_json(reply.read()), False)
            for _ in self._reading():
                pass
            return collect(reply.headers, map(ChatCompletionChunk.model_validate, self._events), True)
        finally:
            self.leave()

    @property
    def seen(self) -> tuple[int, ...]:
        """Tokens that the stream brought so far."""
        choices = [choice for event in self._events for choice in event["choices"]]
        return tuple(token for choice in choices for token in choice.get("token_ids") or [])

    def _answered(self) -> HTTPResponse:
        if self._reply is None:
            self._reply = self._connection.getresponse()
            if self._reply.status != 200:
                raise FailedError(self._reply.status, json.loads(self._reply.read())["error"])
        return self._reply

    def _reading(self) -> Iterator[None]:
        """One step an event. A stream that does not end with ``[DONE]`` is broken off: a failed assertion."""
        reply = self._answered()
        while line := reply.readline():
            data = line.removeprefix(b"data: ").strip()
            if not line.startswith(b"data: "):
                continue
            if data == b"[DONE]":
                return
            event = json.loads(data)
            if "error" in event:
                rest = reply.read()
                assert rest.strip() in {b"", b"data: [DONE]"}, f"after the error: {rest!r}"
                raise FailedError(200, event["error"])
            self._events.append(event)
            yield
        raise AssertionError("the stream ends without [DONE] or an error")


def ask(url: str, messages: Messages, **more: Any) -> Answer:
    """Send and wait; see :class:`Pending`."""
    return Pending(url, messages, **more).answer()
