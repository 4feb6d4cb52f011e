"""A router's double on a real socket: records every request, answers the OpenAI surfaces, streamed or not."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMON: dict[str, Any] = {"id": "x-1", "created": 1, "model": "m"}


@dataclass(frozen=True)
class Recorded:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


Answer = Callable[[Recorded], dict[str, Any]]


@dataclass
class Double:
    """``statuses``: answers to come, then 200 for ever. ``answer``: body of a chat completion."""

    base_url: str = ""
    requests: list[Recorded] = field(default_factory=list)
    statuses: deque[int] = field(default_factory=deque)
    answer: Answer = lambda request: chat_message({"role": "assistant", "content": '{"city": "Rome"}'})

    def calls(self) -> list[Recorded]:
        return [request for request in self.requests if request.method == "POST"]

    def ends(self) -> list[str]:
        return [request.path for request in self.requests if request.method == "DELETE"]


def chat_message(message: dict[str, Any]) -> dict[str, Any]:
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "finish_reason": reason, "message": message}
    return {**COMMON, "object": "chat.completion", "choices": [choice]}


def _response(status: str, text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"id": "m-1", "type": "message", "role": "assistant", "status": status, "content": content}
    return {
        "id": "r-1",
        "created_at": 1,
        "model": "m",
        "object": "response",
        "status": status,
        "output": [message],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
    }


def _events(path: str) -> list[dict[str, Any]]:
    if path.endswith("/chat/completions"):
        piece = {"role": "assistant", "content": '{"city": "Rome"}'}
        choices = [{"index": 0, "delta": piece}, {"index": 0, "delta": {}, "finish_reason": "stop"}]
        return [{**COMMON, "object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
    if path.endswith("/completions"):
        return [{**COMMON, "object": "text_completion", "choices": [{"index": 0, "text": "a"}]}]
    if path.endswith("/responses"):
        created = {**_response("in_progress", ""), "output": []}
        done = _response("completed", '{"city": "Rome"}')
        return [
            {"type": "response.created", "sequence_number": 0, "response": created},
            {"type": "response.completed", "sequence_number": 1, "response": done},
        ]
    raise AssertionError(path)


def _plain(request: Recorded, answer: Answer) -> dict[str, Any]:
    path = request.path.partition("?")[0]
    if path.endswith("/chat/completions"):
        return answer(request)
    if path.endswith("/completions"):
        choice = {"index": 0, "text": "a", "finish_reason": "stop"}
        return {**COMMON, "object": "text_completion", "choices": [choice]}
    if path.endswith("/responses"):
        return _response("completed", '{"city": "Rome"}')
    if path.endswith("/embeddings"):
        return {"object": "list", "model": "m", "data": []}
    return {"object": "list", "data": []}


@contextmanager
def running() -> Iterator[Double]:
    """A double that listens on a free port."""
    double = Double()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            is_json = headers.get("content-type", "").startswith("application/json")
            request = Recorded(self.command, self.path, headers, json.loads(raw) if raw and is_json else raw)
            with lock:
                double.requests.append(request)
                status = double.statuses.popleft() if double.statuses else 200
            if self.command == "DELETE":
                self._reply(204 if status == 200 else status, b"", "text/plain")
            elif status != 200:
                self._reply(status, b'{"error": {"message": "scripted"}}', "application/json")
            elif isinstance(request.body, dict) and request.body.get("stream"):
                path = self.path.partition("?")[0]
                events = [json.dumps(event) for event in _events(path)]
                named = path.endswith("/responses")
                text = "".join(
                    (f"event: {json.loads(event)['type']}\n" if named else "") + f"data: {event}\n\n"
                    for event in events
                )
                self._reply(200, f"{text}data: [DONE]\n\n".encode(), "text/event-stream")
            else:
                self._reply(200, json.dumps(_plain(request, double.answer)).encode(), "application/json")

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815

        def _reply(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    double.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
