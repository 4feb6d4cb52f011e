"""A router's ear on a real socket: records what it is told and answers as scripted."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from antiphon import _ending


@dataclass(frozen=True)
class Heard:
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Ear:
    """``statuses``: answers to come, then 204 for ever."""

    base_url: str = ""
    heard: list[Heard] = field(default_factory=list)
    statuses: deque[int] = field(default_factory=deque)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def paths(self) -> list[str]:
        return [request.path for request in self.heard]

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.heard) >= count, timeout=20)


@pytest.fixture(autouse=True)
def patient_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """No try is given up on a busy machine: tests count tries."""
    monkeypatch.setattr(_ending, "ATTEMPT_SECONDS", 60.0)


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_DELETE(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            with ear.changed:
                ear.heard.append(Heard(self.command, self.path, headers))
                status = ear.statuses.popleft() if ear.statuses else 204
                ear.changed.notify_all()
            self.send_response(status)
            if status != 204:
                self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    ear.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield ear
    server.shutdown()
    server.server_close()
    thread.join()
