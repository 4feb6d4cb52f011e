"""Telling routers that conversations ended, so that their KV is freed now and not when its lease runs out.

Bounded (:data:`ATTEMPTS` of :data:`ATTEMPT_SECONDS` each) and harmless: what fails is logged, never raised.
What it needs for that is imported when there is something to end, so that importing the SDK stays quick.
"""

from __future__ import annotations

import inspect
import logging
import sys
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
    try:
        import asyncio

        asyncio.get_running_loop()
    except (ImportError, RuntimeError):  # ImportError: the interpreter is shutting down
        _end(errands)
    else:
        _end_in_thread(errands)


def _end_in_thread(errands: Errands) -> None:
    try:
        threading.Thread(target=_end, args=(errands,), name="antiphon-ending").start()
    except RuntimeError as error:  # no more threads, or the interpreter is shutting down
        for router, ids in errands.items():
            _warn(router, ids, error)


def _end(errands: Errands) -> None:
    for router, ids in errands.items():
        try:
            with ExitStack() as stack:
                client = _borrowed(router, asynchronous=False)
                for conversation_id in ids:
                    for attempt in _tries("Retrying"):
                        with attempt:
                            using: Any = client or stack.enter_context(_http().Client())
                            client = None  # one that failed is not used again
                            _judge(using.delete(**_request(router, conversation_id)).status_code)
                            client = using
        except Exception as error:
            _warn(router, ids, error)


async def aend(errands: Errands) -> None:
    """End conversations. Where this is cancelled, a thread does the rest."""
    left = dict(errands)
    try:
        for router, ids in errands.items():
            await _aend(router, ids)
            del left[router]
    except BaseException:  # some scopes cancel whatever is awaited in them, so that no request gets out
        _end_in_thread(left)
        raise


async def _aend(router: Router, ids: Sequence[str]) -> None:
    try:
        async with AsyncExitStack() as stack:
            client = _borrowed(router, asynchronous=True)
            for conversation_id in ids:
                async for attempt in _tries("AsyncRetrying"):
                    with attempt:
                        using: Any = client or await stack.enter_async_context(_http().AsyncClient())
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
        retry=tenacity.retry_if_exception(_is_worth_another),
        reraise=True,
    )


def _is_worth_another(error: BaseException) -> bool:
    """Cancellation and the like must come through at once."""
    return isinstance(error, Exception) and not isinstance(error, _RefusedError)


def _http() -> Any:
    """The HTTP library that the program has. openai looks for httpx on each call, and calls that meet it half
    imported fail: so none is imported where one is there."""
    return import_module(next((name for name in ("httpx", "httpx2") if name in sys.modules), "httpx"))


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
