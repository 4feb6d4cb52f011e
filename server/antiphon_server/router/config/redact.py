"""What is shown of values and texts that may hold a password."""

from __future__ import annotations

import re

MASK = "***"
_QUERY = re.compile(r"(?i)\b\w*password=")
_IN_TEXT = re.compile(r"\w+://[^\s'\"]+")


def redacted(value: str) -> str:
    """A whole setting. Of a URL without user and password, and without a query that names a password. Nothing
    is taken for sound: a password may hold any sign, such as ``/``, ``?`` or ``@``."""
    scheme, separator, rest = value.partition("://")
    if not separator:
        return value
    query = rest.partition("?")[2]
    if "@" in query and _QUERY.search(query):
        return f"{scheme}://{MASK}"  # where the password begins and ends cannot be told
    user, at, place = rest.rpartition("@")
    address, mark, query = place.partition("?")
    hidden = MASK if user.strip(":") else user
    return f"{scheme}://{hidden}{at}{address}{mark}{MASK if _QUERY.search(query) else query}"


def masked(text: str) -> str:
    """A text with URLs in it, which end at white space or a quote."""
    return _IN_TEXT.sub(lambda url: redacted(url[0]), text)
