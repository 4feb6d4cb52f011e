"""What must hold between settings. Each rule says what is wrong and what to do, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon_server.router.config.settings import RouterSettings

Rule = Callable[["RouterSettings"], str | None]


def problems(settings: RouterSettings) -> list[str]:
    """What all rules say."""
    return [problem for rule in RULES if (problem := rule(settings)) is not None]


def _renews_in_time(settings: RouterSettings) -> str | None:
    if settings.renew_interval + settings.lease_margin < settings.lease_ttl:
        return None
    return (
        f"renew_interval {settings.renew_interval:g} + lease_margin {settings.lease_margin:g} must stay "
        f"below lease_ttl {settings.lease_ttl:g}, or leases end between two renewals"
    )


def _relieves_downwards(settings: RouterSettings) -> str | None:
    if settings.pressure_low <= settings.pressure_high:
        return None
    return (
        f"pressure_low {settings.pressure_low:g} is above pressure_high {settings.pressure_high:g}: "
        "lower it, so that giving up comes to an end"
    )


RULES: tuple[Rule, ...] = (_renews_in_time, _relieves_downwards)
