"""A chat completions server on a real socket that says what it is told to, whole or streamed."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Message = dict[str, Any]
COMMON: Message = {"id": "x-1", "created": 1, "model": "m"}
USAGE: Message = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


@dataclass(frozen=True)
class Say:
    """``messages``: one a choice, as they come on the wire. ``deltas``: of a stream; by default the first
    message in one piece. ``before``, ``after``: more choices, as chunks, around those of the message."""

    messages: tuple[Message, ...]
    deltas: Sequence[Message] | None = None
    before: Sequence[Message] = ()
    after: Sequence[Message] = ()

    def whole(self) -> Message:
        choices = [
            {"index": place, "finish_reason": _reason(message), "message": message}
            for place, message in enumerate(self.messages)
        ]
        return {**COMMON, "object": "chat.completion", "choices": choices, "usage": USAGE}

    def chunks(self) -> Iterator[Message]:
        deltas = self.deltas if self.deltas is not None else self.messages[:1]
        choices: list[Message] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": _reason(*self.messages[:1])})
        for choice in [*self.before, *choices, *self.after]:
            yield {**COMMON, "object": "chat.completion.chunk", "choices": [choice]}
        yield {**COMMON, "object": "chat.completion.chunk", "choices": [], "usage": USAGE}


def say(*messages: Message, **more: Sequence[Message]) -> Say:
    """``more``: see :class:`Say`."""
    return Say(tuple({"role": "assistant", **message} for message in messages), **more)


def _reason(message: Message) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


@dataclass
class Scripted:
    """``script``: what to say next, then "ok" for ever. ``bodies``, ``headers``: of the requests."""

    base_url: str = ""
    script: deque[Say] = field(default_factory=deque)
    bodies: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def sent(self) -> list[Message]:
        """Assistant messages of the last request."""
        messages: list[Message] = self.bodies[-1]["messages"]
        return [message for message in messages if message["role"] == "assistant"]


@contextmanager
def scripted() -> Iterator[Scripted]:
    """A server that listens on a free port."""
    server = Scripted()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.bodies.append(body)
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            said = server.script.popleft() if server.script else say({"content": "ok"})
            if body.get("stream"):
                events = [*(json.dumps(chunk) for chunk in said.chunks()), "[DONE]"]
                self._reply("".join(f"data: {event}\n\n" for event in events), "text/event-stream")
            else:
                self._reply(json.dumps(said.whole()), "application/json")

        def do_DELETE(self) -> None:
            self._reply("", "text/plain")

        def _reply(self, text: str, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    class Listening(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128  # with the default of 5, a busy machine refuses some

    listening = Listening(("127.0.0.1", 0), Handler)
    server.base_url = f"http://127.0.0.1:{listening.server_address[1]}/v1"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()
