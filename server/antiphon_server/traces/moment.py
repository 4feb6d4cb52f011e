"""Points in time as logs have them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from antiphon_server.traces.number import number

_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""From which size on an epoch is in ns, us, ms."""


def moment(value: Any) -> float | None:
    """Seconds since the epoch: of a number in s, ms, us or ns, or of ISO 8601 (UTC where it says no zone)."""
    if (found := number(value)) is not None:
        return next((found / unit for least, unit in _UNITS if found >= least), found)
    if not isinstance(value, str):
        return None
    try:
        read = datetime.fromisoformat(value)
        return number((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError, OSError):
        return None
