"""The reply to a client, over ASGI; knows whether the client has been told anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.types import Send

from antiphon_server.router.gate.line import Line

Header = tuple[str, str]


class Reply:
    """``started``: status and headers are on their way, so nothing can be taken back."""

    def __init__(self, send: Send, line: Line | None = None) -> None:
        self._send = send
        self._line = line
        self._first_byte: Callable[[], None] | None = None
        self.started = False

    def on_first_byte(self, call: Callable[[], None] | None) -> None:
        """Have ``call`` called once, when the first byte of the body goes out; None: nothing."""
        self._first_byte = call

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """Send status and headers, where the connection offers it together with the first bytes of the
        body."""
        self.started = True
        if self._line is not None:
            self._line.hold_head()
        raw = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send bytes of the body now."""
        if self._first_byte is not None:
            self._first_byte()
            self._first_byte = None
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    def pass_on(self, data: bytes) -> bool:
        """Send more of the body without waiting. False: not sent, :meth:`write` it."""
        return self._line is not None and self._first_byte is None and self._line.send(data)

    async def whole(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """A complete reply."""
        await self.start(status, [*headers, ("content-length", str(len(body)))])
        await self.write(body, last=True)
