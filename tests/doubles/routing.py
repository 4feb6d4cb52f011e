"""A router in the test's own event loop, on a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette

from antiphon_server.router.gate.bounds import protocol_within
from antiphon_server.simulator.guest import serving


@asynccontextmanager
async def serve_router(app: Starlette) -> AsyncIterator[str]:
    """``app``: as ``create_app`` makes it. Yields its URL."""
    config = uvicorn.Config(
        app,
        port=0,
        http=protocol_within(app.state.router.settings),
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=2,
    )
    async with serving(config) as url:
        yield url
