"""Where frontiers are kept, as a setting says it."""

from __future__ import annotations

from urllib.parse import urlsplit

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


def redacted(value: str) -> str:
    """The value without what may be secret: user, password and query."""
    scheme, separator, rest = value.partition("://")
    if not separator:
        return value
    address = rest.partition("?")[0]
    user, at, place = address.rpartition("@")
    return f"{scheme}://***@{place}" if at and user else f"{scheme}://{place}"


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
    return None if not database or database.isdigit() else f"names no database by {database!r}"
