"""Points in time as logs have them."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from antiphon_server.traces.number import number

_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""From which size on an epoch is in ns, us, ms."""
_UTC = re.compile(r"\s*(?:UTC|GMT|Z)$")
_APART = re.compile(r"\s+(?=[+-]\d\d:?\d\d$)")
"""Between a time and its zone, where ISO 8601 has nothing."""
_FORMS = ("%d/%b/%Y:%H:%M:%S", "%a, %d %b %Y %H:%M:%S")
"""Of access logs and of HTTP, without the zone."""


def moment(value: Any) -> float | None:
    """Seconds since the epoch: of a number in s, ms, us or ns, of ISO 8601, or as access logs and HTTP write
    it (UTC where it says no zone)."""
    if (found := number(value)) is not None:
        return next((found / unit for least, unit in _UNITS if found >= least), found)
    if not isinstance(value, str):
        return None
    text = _APART.sub("", _UTC.sub("", value.strip("[] ")))
    try:
        read = _read(text)
        return number((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError, OSError):
        return None


def _read(text: str) -> datetime:
    with suppress(ValueError):
        return datetime.fromisoformat(text)
    for form in (*_FORMS, *(f"{form}%z" for form in _FORMS)):
        with suppress(ValueError):
            return datetime.strptime(text, form)
    raise ValueError(text)
