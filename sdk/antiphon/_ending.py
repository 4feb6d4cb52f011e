"""Telling routers that conversations ended, so that their KV is freed now and not when its lease runs out.

Bounded (:data:`ATTEMPTS` of :data:`ATTEMPT_SECONDS` each) and harmless: what fails is logged, never raised.
What it needs for that is imported when there is something to end, so that importing the SDK stays quick.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from importlib import import_module
from typing import Any

from antiphon._router import Router

ATTEMPTS = 3
ATTEMPT_SECONDS = 2.0

Errands = Mapping[Router, Sequence[str]]
"""Ids of the conversations to end, by router."""


class _RefusedError(Exception):
    """Asking again will not help."""


class _UnreadyError(Exception):
    """Asking again may help."""


_log = logging.getLogger("antiphon")


def end(errands: Errands) -> None:
    """End conversations. Under a running event loop a thread does it, so that the loop never waits."""
    if not errands:
        return
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _end(errands)
    else:
        threading.Thread(target=_end, args=(errands,), name="antiphon-ending").start()


def _end(errands: Errands) -> None:
    for router, ids in errands.items():
        try:
            with ExitStack() as stack:
                client = _borrowed(router, asynchronous=False)
                for conversation_id in ids:
                    for attempt in _tries("Retrying"):
                        with attempt:
                            using: Any = client or stack.enter_context(import_module("httpx").Client())
                            client = None  # one that failed is not used again
                            _judge(using.delete(**_request(router, conversation_id)).status_code)
                            client = using
        except Exception as error:
            _warn(router, ids, error)


async def aend(errands: Errands) -> None:
    """End conversations."""
    for router, ids in errands.items():
        try:
            async with AsyncExitStack() as stack:
                client = _borrowed(router, asynchronous=True)
                for conversation_id in ids:
                    async for attempt in _tries("AsyncRetrying"):
                        with attempt:
                            using: Any = client or await stack.enter_async_context(
                                import_module("httpx").AsyncClient()
                            )
                            client = None
                            _judge((await using.delete(**_request(router, conversation_id))).status_code)
                            client = using
        except Exception as error:
            _warn(router, ids, error)


def _tries(kind: str) -> Any:
    """The policy as tenacity's ``Retrying`` or ``AsyncRetrying``."""
    import tenacity

    return getattr(tenacity, kind)(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_random_exponential(multiplier=0.05, max=0.5),
        retry=tenacity.retry_if_not_exception_type(_RefusedError),
        reraise=True,
    )


def _borrowed(router: Router, *, asynchronous: bool) -> Any | None:
    """The transport that reached the router, where it still is open and of the flavour wanted."""
    transport = router.transport() if router.transport else None
    if transport is None or transport.is_closed:
        return None
    return transport if inspect.iscoroutinefunction(transport.delete) is asynchronous else None


def _request(router: Router, conversation_id: str) -> dict[str, Any]:
    return {
        "url": router.conversation_url(conversation_id),
        "headers": router.ending_headers(),
        "timeout": ATTEMPT_SECONDS,
    }


def _judge(status: int) -> None:
    """Return where nothing is left to do: ended, or never known there (404; 405 without our route).

    Raises:
        _RefusedError: ask no more.
        _UnreadyError: ask again.
    """
    if status < 300 or status in (404, 405):
        return
    raise (_UnreadyError if status >= 500 or status in (408, 429) else _RefusedError)(f"HTTP {status}")


def _warn(router: Router, ids: Sequence[str], error: Exception) -> None:
    shown = ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")
    _log.warning(
        "could not tell %s that conversation %s ended (%s: %s); it frees the KV when the lease runs out",
        router.base_url,
        shown,
        type(error).__name__,
        error,
    )
