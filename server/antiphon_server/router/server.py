"""The router's process: listens, drains on SIGTERM and SIGINT, reloads on SIGHUP."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import signal
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import cast

import uvicorn

from antiphon_server.router.app import create_app
from antiphon_server.router.config.config import Loaded
from antiphon_server.router.config.reload import Reloads
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.gate.bounds import BoundedProtocol, protocol_within
from antiphon_server.router.state import State

log = logging.getLogger(__name__)

_COLLECT = (2_000, 10, 1_000)
"""Objects more, and collections of each younger generation, before one is collected. Turns leave next to
nothing in cycles, and a collection holds up every stream while it looks: some ms for 20,000 objects, a fifth
of a second for all there is with ten thousand conversations and a thousand streams. So it looks at few at a
time, and rarely at all."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT, _MAPPED = 64 << 20, 4 << 20
"""Bytes: of freed memory that the process keeps; of a block that is mapped by itself, and given back."""

_CANCELLED = 2
"""Seconds for turns that were cancelled, after ``shutdown_grace``, to end."""


def run(loaded: Loaded, read: Callable[[], Loaded]) -> int:
    """Serve until told to stop. ``read``: reads the configuration anew. Returns the exit code: 0 after a
    drain, 1 when a second signal cut it short, 3 when the router could not start."""
    settings = loaded.settings
    if settings is None:
        raise ValueError(loaded.explain())
    for notice in loaded.notices:
        log.warning("config.notice", extra={"notice": notice})
    app = create_app(settings)
    state = cast("State", app.state.router)
    settle()
    server = RouterServer(_uvicorn(app, settings), state, read)
    with suppress(SystemExit):  # uvicorn's way to say that it could not start; it has logged why
        server.run()
    if not server.started:
        return 3
    return 1 if server.force_exit else 0


def settle() -> None:
    """Have the garbage collector leave alone what is there from the start, and look less often at the rest:
    a turn makes hundreds of objects, hardly any of them part of a cycle."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT)
    # Bodies of hundreds of kilobytes come and go with each turn. glibc would give their memory back to the
    # system each time, which then has to clear every page of it anew.
    with suppress(OSError, AttributeError):  # another C library
        malloc = ctypes.CDLL(None)
        malloc.mallopt(_M_MMAP_THRESHOLD, _MAPPED)
        malloc.mallopt(_M_TRIM_THRESHOLD, _KEPT)


def _uvicorn(app: object, settings: RouterSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=protocol_within(settings),
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_CANCELLED,
        backlog=4096,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        ssl_keyfile_password="" if settings.tls_key is not None else None,
    )


class RouterServer(uvicorn.Server):
    """Keeps listening while it drains, so that load balancers see ``/ready`` say so."""

    def __init__(self, config: uvicorn.Config, state: State, read: Callable[[], Loaded]) -> None:
        super().__init__(config)
        self._state = state
        self._reloads = Reloads(state, read, self._renew)
        self._tasks: set[asyncio.Task[None]] = set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled in the loop. uvicorn would raise them again at the end: exit code 0 is due."""
        loop = asyncio.get_running_loop()
        handlers = {
            signal.SIGTERM: self._stop,
            signal.SIGINT: self._stop,
            signal.SIGHUP: lambda: self._start(self._reloads.reload()),
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        if self._state.drain.begun or not self.started:
            self.force_exit = self.started
            self.should_exit = True
            return
        self._state.begin_drain()
        self._start(self._drain())

    async def _drain(self) -> None:
        grace = self._state.settings.shutdown_grace
        log.info("router.draining", extra={"in_flight": self._state.drain.in_flight, "seconds": grace})
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._state.drain.idle()
        if self._state.drain.in_flight:
            remedy = "raise shutdown_grace to let longer turns end"
            log.warning("router.cut", extra={"in_flight": self._state.drain.in_flight, "remedy": remedy})
        self.should_exit = True

    def _start(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _renew(self, settings: RouterSettings) -> None:
        """New connections see what the certificate's files hold now; all keep to the settings' bounds."""
        cast("type[BoundedProtocol]", self.config.http).keep_to(settings)
        if isinstance(self.config.ssl, ssl.SSLContext) and settings.tls_cert is not None:
            self.config.ssl.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
