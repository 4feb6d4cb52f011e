"""Connections whose reading or writing waits: clients that have left meanwhile, or take nothing any more."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import select
import termios
from array import array
from collections.abc import Callable
from contextlib import suppress

from uvicorn.protocols.http.flow_control import FlowControl

log = logging.getLogger(__name__)

_GLANCE = 1.0
"""Seconds between two looks at whether a client is still there while nothing of it is read."""


class Flow(FlowControl):
    """uvicorn's, which would wait for its client for ever. ``idle``: seconds that a client may take
    nothing."""

    def __init__(self, transport: asyncio.Transport, idle: Callable[[], float]) -> None:
        super().__init__(transport)
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._glancing: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        self._untaken = 0

    def pause_reading(self) -> None:
        super().pause_reading()
        if self._glancing is None:
            self._glancing = self._loop.call_later(_GLANCE, self._glance)

    def resume_reading(self) -> None:
        super().resume_reading()
        self._stop_glancing()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._taking is None:
            self._look_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def end(self) -> None:
        """The connection is lost."""
        self._stop_glancing()
        self.resume_writing()

    def _stop_glancing(self) -> None:
        if self._glancing is not None:
            self._glancing.cancel()
            self._glancing = None

    def _glance(self) -> None:
        if _has_hung_up(self._transport):
            self._transport.abort()
        else:
            self._glancing = self._loop.call_later(_GLANCE, self._glance)

    def _look_later(self) -> None:
        self._untaken = _untaken(self._transport)
        self._taking = self._loop.call_later(self._idle(), self._look)

    def _look(self) -> None:
        if _untaken(self._transport) != self._untaken:
            self._look_later()
            return
        log.info("client.stalled", extra={"seconds": self._idle(), "untaken": self._untaken})
        self._transport.abort()


def _has_hung_up(transport: asyncio.Transport) -> bool:
    """Whether the client has ended the connection, which the loop sees only when it reads."""
    poll = select.poll()
    with suppress(OSError, ValueError):  # a closed connection
        poll.register(_descriptor(transport), getattr(select, "POLLRDHUP", 0))
        return bool(poll.poll(0))
    return False


def _untaken(transport: asyncio.Transport) -> int:
    """Bytes that have been written and have not reached the client's machine. The loop's own count stands
    still for long though the client reads: the kernel holds megabytes, and asks for more only once a third of
    them has gone."""
    held = array("i", [0])
    with suppress(OSError, ValueError):  # a kernel that does not say; a closed connection
        fcntl.ioctl(_descriptor(transport), termios.TIOCOUTQ, held)
    return transport.get_write_buffer_size() + held[0]


def _descriptor(transport: asyncio.Transport) -> int:
    number: int = transport.get_extra_info("socket").fileno()
    return number
