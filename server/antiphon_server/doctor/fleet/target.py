"""A running fleet, as the doctor is told of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FleetTarget:
    """Base URLs, without ``/v1``. ``engine_key``: bearer key of the engines. ``api_key``: a client's key for
    the router; ``admin_key``: its administrator's. ``probe``: send real requests too, not only look.
    ``timeout``: seconds for one answer."""

    router: str | None = None
    prefill: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    engine_key: str | None = None
    api_key: str | None = None
    admin_key: str | None = None
    probe: bool = True
    timeout: float = 5.0

    @property
    def keys(self) -> tuple[str, ...]:
        """All that are sent."""
        return tuple(filter(None, (self.engine_key, self.api_key, self.admin_key)))
