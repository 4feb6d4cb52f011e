"""A server that answers as no engine should: late, for good, or something else."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from antiphon_server.protocol import INFO_PATH, LEASES_PATH
from doubles.engine_info import info

TICK_S = 0.05
TICKS = 80
"""After which a trickle ends well, so that who waits for it gets a good answer."""
HANG_S = 20.0
ENDLESS_BYTES = 32 * 1024**2

Act = Callable[["Handler"], None]


@dataclass
class Hostile:
    """``acts``: by path. ``seen``: paths, in order, with their bodies."""

    acts: dict[str, Act]
    url: str = ""
    seen: list[tuple[str, bytes]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def bodies(self, path: str) -> list[bytes]:
        return [body for at, body in self.seen if at == path]


class Handler(BaseHTTPRequestHandler):
    hostile: Hostile

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.hostile.seen.append((self.path, self.rfile.read(length)))
        act = self.hostile.acts.get(self.path) or self.hostile.acts.get("*") or say(b"", 404)
        self.close_connection = True
        with contextlib.suppress(OSError):  # its client has left
            act(self)

    do_POST = do_DELETE = do_GET  # noqa: N815 - names of the base class

    def head(self, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        self.send_header("Connection", "close")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()


def say(body: bytes, code: int = 200) -> Act:
    def act(handler: Handler) -> None:
        handler.head(code, Content_Length=str(len(body)))
        handler.wfile.write(body)

    return act


def tell(value: Any) -> Act:
    return say(json.dumps(value).encode())


def hang(handler: Handler) -> None:
    handler.hostile.over.wait(HANG_S)


def endless(handler: Handler) -> None:
    """As far as a test that fails can bear."""
    handler.head()
    for _ in range(ENDLESS_BYTES // 65536):
        handler.wfile.write(b"#".ljust(65535, b"x") + b"\n")


def trickle(body: bytes) -> Act:
    """White space, a byte at a time, then a good answer."""

    def act(handler: Handler) -> None:
        handler.head(Content_Length=str(len(body) + TICKS))
        for _ in range(TICKS):
            handler.wfile.write(b" ")
            if handler.hostile.over.wait(TICK_S):
                return
        handler.wfile.write(body)

    return act


def trickle_head(body: bytes) -> Act:
    """Headers, one at a time."""

    def act(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n")
        for tick in range(TICKS):
            handler.wfile.write(b"X-%d: 1\r\n" % tick)
            if handler.hostile.over.wait(TICK_S):
                return
        handler.wfile.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    return act


def engine(role: str, **acts: Act) -> dict[str, Act]:
    """What an engine answers that is sound but computes nothing. ``acts``: by last word of the path."""
    told = msgspec.json.encode(info(role=role, engine_id=role))
    paths = {
        "/health": say(b""),
        INFO_PATH: say(told),
        "/v1/models": tell({"data": [{"id": "m", "max_model_len": 4096}]}),
        "/metrics": say(b""),
        "/tokenize": tell({"tokens": list(range(5000))}),
        LEASES_PATH: tell({"leases": {}, "pinned": 0}),
        "/v1/completions": tell({}),
    }
    named = {path.rpartition("/")[2]: path for path in paths}
    return {**paths, **{named[name]: act for name, act in acts.items()}}


@contextmanager
def hostile(acts: Mapping[str, Act]) -> Iterator[Hostile]:
    """One that listens; all its hung answers end with it."""
    own = Hostile(dict(acts))
    kind = type("Own", (Handler,), {"hostile": own})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        server.daemon_threads = True
        own.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield own
        finally:
            own.over.set()
            server.shutdown()
            thread.join()
