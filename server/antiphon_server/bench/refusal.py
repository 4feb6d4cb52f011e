"""A server that answers, but with an error: what it said, and what to do. Pure."""

from __future__ import annotations

from http import HTTPStatus

import httpx


def refusal(error: Exception) -> str | None:
    """What such an answer means, with where it came from; None for other errors, and for answers that say
    nothing of the server's state, like 404."""
    if not isinstance(error, httpx.HTTPStatusError):
        return None
    code = error.response.status_code
    what = remedy(code)
    return None if what is None else f"{error.request.url} answers {_named(code)}: {what}"


def remedy(code: int) -> str | None:
    """For a status."""
    if code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return "give the right key: a router's with --api-key, the engines' own as ANTIPHON_ENGINE_KEY"
    if code == HTTPStatus.TOO_MANY_REQUESTS:
        return "it takes no more requests for now: wait, then try again"
    if code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "its log, or an engine's behind it, has the cause"
    return None


def plain(error: Exception) -> str:
    """Any error, short: of a status that alone, without links to what it means."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"{_named(error.response.status_code)} for {error.request.url.path}"
    return str(error)


def _named(code: int) -> str:
    try:
        return f"{code} {HTTPStatus(code).phrase}"
    except ValueError:
        return f"{code}"
