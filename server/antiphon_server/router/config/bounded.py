"""HTTP to what may answer anything: a request ends in its time, and a reply is not larger than it may be."""

from __future__ import annotations

import asyncio
import functools
import math
import ssl
from collections.abc import Callable
from typing import Any

import httpx

METRICS_BYTES = 4 * 1024**2
"""Most of a ``/metrics`` page. One of a large fleet's router has some hundred kilobytes."""
OTHER_BYTES = 1024**2
"""Most of any other reply. The ids of a prompt of some thousand tokens take tens of kilobytes."""


@functools.cache
def certificates() -> ssl.SSLContext:
    """Whom to trust; reading them takes longer than an answer."""
    return httpx.create_ssl_context(trust_env=False)


def endless() -> float:
    """No time is set for all requests together."""
    return math.inf


class Bounded(httpx.AsyncBaseTransport):
    """Reads whole replies. A client's ``timeout`` is for the request from its beginning to the reply's end,
    where httpx alone takes it for each wait, so that a byte now and then holds it up for good. ``left``:
    seconds that remain for all requests together."""

    def __init__(self, inner: httpx.AsyncBaseTransport | None = None, left: Callable[[], float] = endless):
        self._inner = inner or httpx.AsyncHTTPTransport(verify=certificates())
        self._left = left

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises httpx.HTTPError: too late, too large, or what the connection's end was."""
        timeouts: dict[str, Any] = request.extensions.get("timeout", {})
        alone, left = timeouts.get("read") or math.inf, self._left()
        patience = min(alone, left)
        told = f"no whole answer within {alone:g} s" if alone <= left else "the time for all of it is over"
        if patience <= 0:
            raise httpx.ReadTimeout(told, request=request)
        # What is compressed could be endless within any limit.
        request.headers["Accept-Encoding"] = "identity"
        try:
            async with asyncio.timeout(None if patience == math.inf else patience):
                return await self._whole(request)
        except TimeoutError as error:
            raise httpx.ReadTimeout(told, request=request) from error
        except (ValueError, ArithmeticError, ExceptionGroup) as error:  # no such port, or no such name
            raise httpx.ConnectError("its address is none", request=request) from error
        except httpx.TimeoutException as error:
            raise type(error)(told, request=request) from error

    async def _whole(self, request: httpx.Request) -> httpx.Response:
        most = METRICS_BYTES if request.url.path.endswith("/metrics") else OTHER_BYTES
        reply = await self._inner.handle_async_request(request)
        try:
            body = bytearray()
            assert isinstance(reply.stream, httpx.AsyncByteStream)
            async for part in reply.stream:
                body += part
                if len(body) > most:
                    raise httpx.RemoteProtocolError(f"answers more than {most} bytes", request=request)
        finally:
            await reply.aclose()
        coded = reply.headers.get("Content-Encoding", "identity")
        if coded.lower() != "identity":
            raise httpx.DecodingError(f"answers in {coded}, which was not asked for", request=request)
        return httpx.Response(reply.status_code, headers=reply.headers, content=bytes(body), request=request)

    async def aclose(self) -> None:
        await self._inner.aclose()
