"""Where frontiers are kept, as a setting says it."""

from __future__ import annotations

from urllib.parse import urlsplit

from antiphon_server.router.config.redact import redacted

MEMORY = "memory"


def check_store(value: str) -> str:
    """The value as it is.

    Raises:
        ValueError: it names no store; the message shows no password.
    """
    if value == MEMORY:
        return value
    fault = _fault(value)
    if fault is not None:
        raise ValueError(
            f"store {redacted(value)!r} {fault}: use {MEMORY}, redis://host:6379/0, rediss://host:6379/0 "
            "or unix:///path/to/redis.sock"
        )
    return value


def _fault(value: str) -> str | None:
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme == "unix":
        return None if parts.path.strip("/") else "names no socket"
    if parts.scheme not in {"redis", "rediss"}:
        return "is of no known kind"
    if not parts.hostname or port == 0:
        return "names no host"
    database = parts.path.strip("/")
    return None if not database or database.isdigit() else "names no database by its number"
