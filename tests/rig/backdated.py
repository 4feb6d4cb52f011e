"""A decode engine whose handles say that their lease is over, which no careful router would let happen."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

EXPIRED = 10.0
"""A deadline long past, on every machine's monotonic clock."""
_OF_THE_TRANSFER = {"content-length", "transfer-encoding", "content-encoding", "connection", "date", "server"}
_DEADLINE = re.compile(rb'("remote_blocks_expiry_time":\s*)[0-9.e+]+')


@contextlib.contextmanager
def backdated(engine: str) -> Iterator[str]:
    """URL of a relay to ``engine`` that puts :data:`EXPIRED` into the handles it returns."""

    class Relay(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def relay(self) -> None:
            sent = self.rfile.read(int(self.headers.get("content-length", 0)))
            passed = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            reply = httpx.request(
                self.command, engine + self.path, content=sent, headers=passed, timeout=300, trust_env=False
            )
            body = _DEADLINE.sub(rb"\g<1>%.1f" % EXPIRED, reply.content)
            self.send_response(reply.status_code)
            for name, value in reply.headers.items():
                if name not in _OF_THE_TRANSFER:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = relay  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Relay)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
