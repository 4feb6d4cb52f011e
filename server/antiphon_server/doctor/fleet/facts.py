"""What was seen of a running fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from antiphon_server.router.config.check import Engine, Trouble
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.fleet.workers import Role

__all__ = [
    "Engine",
    "EngineSeen",
    "FleetFacts",
    "Mishaps",
    "RouterSeen",
    "RouterTimes",
    "RouterTrouble",
    "Trouble",
    "WorkerSeen",
]

_FAILED = ("vllm:nixl_num_failed_transfers_total", "vllm:nixl_num_failed_notifications_total")
_LATE = "vllm:nixl_num_notifications_after_expiry_total"


UNREADABLE = (ValueError, ArithmeticError, LookupError, TypeError, AttributeError)
"""What a ``/metrics`` page raises that is none: its parser trusts it."""


@dataclass(frozen=True, slots=True)
class Mishaps:
    """What went wrong with transfers since the engine's start. ``failed``: transfers; ``late``: reads that
    ended after their lease had. Leases that expire are not counted: a released one looks like them."""

    failed: int = 0
    late: int = 0


def mishaps(metrics: str) -> Mishaps:
    """Of an engine's ``/metrics`` page. Raises one of :data:`UNREADABLE`."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return Mishaps(round(max(sums.get(name, 0.0) for name in _FAILED)), round(sums.get(_LATE, 0.0)))


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """``asked``: what it answered to the router's own questions. ``model``: the name that it serves;
    ``context``: tokens that the model takes. ``found``: the router named it, nobody else."""

    asked: Engine
    mishaps: Mishaps | None = None
    model: str | None = None
    context: int | None = None
    found: bool = False

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.asked.role} {self.asked.url}"


class RouterTrouble(StrEnum):
    """What keeps the router from being looked at, or from serving."""

    SILENT = "silent"
    UNREADY = "mishapsy"
    API_KEY = "api key"
    ADMIN_KEY = "admin key"


def _default(name: str) -> float:
    return float(RouterSettings.model_fields[name].default)


class RouterTimes(msgspec.Struct, frozen=True):
    """What a router's settings say of kept KV; the defaults where it does not tell."""

    lease_ttl: float = msgspec.field(default_factory=lambda: _default("lease_ttl"))
    renew_interval: float = msgspec.field(default_factory=lambda: _default("renew_interval"))
    lease_margin: float = msgspec.field(default_factory=lambda: _default("lease_margin"))
    keep: float = msgspec.field(default_factory=lambda: _default("keep"))
    keep_share: float = msgspec.field(default_factory=lambda: _default("keep_share"))
    paths: list[str] = msgspec.field(default_factory=lambda: ["cold", "reuse", "append"])

    @property
    def keeps(self) -> bool:
        """Is decode's KV kept between turns?"""
        return set(self.paths) != {"cold"}


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """An engine as the router sees it. ``shut_out``: its breaker is not closed."""

    role: Role
    url: str
    healthy: bool
    draining: bool
    shut_out: bool


@dataclass(frozen=True, slots=True)
class RouterSeen:
    """``troubles``: with what was said. ``times``: its settings, None where they are not known. ``degraded``:
    its shared store does not answer. ``loopback``: handles so far that name a host nobody else reaches.
    ``model``: a name that it serves; ``context``: tokens that the model takes."""

    url: str
    troubles: Mapping[RouterTrouble, str] = field(default_factory=dict)
    workers: tuple[WorkerSeen, ...] = ()
    times: RouterTimes | None = None
    degraded: bool = False
    loopback: int = 0
    model: str | None = None
    context: int | None = None


def read_router(metrics: str) -> tuple[tuple[WorkerSeen, ...], int]:
    """Of a router's ``/metrics`` page: its engines, and handles that name a loopback address.
    Raises one of :data:`UNREADABLE`."""
    gauges: dict[str, dict[tuple[str, str], float]] = {}
    loopback = 0.0
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            labels = sample.labels
            if {"role", "worker"} <= labels.keys():
                gauges.setdefault(sample.name, {})[labels["role"], labels["worker"]] = sample.value
            if sample.name == "antiphon_handles_total" and "loopback" in labels.values():
                loopback += sample.value
    draining = gauges.get("antiphon_worker_draining", {})
    breaker = gauges.get("antiphon_worker_breaker", {})
    workers = tuple(
        WorkerSeen(
            "prefill" if key[0] == "prefill" else "decode",
            key[1],
            healthy=bool(healthy),
            draining=bool(draining.get(key)),
            shut_out=bool(breaker.get(key)),
        )
        for key, healthy in gauges.get("antiphon_worker_healthy", {}).items()
    )
    return workers, round(loopback)


@dataclass(frozen=True, slots=True)
class FleetFacts:
    engines: tuple[EngineSeen, ...] = ()
    router: RouterSeen | None = None

    @property
    def times(self) -> RouterTimes:
        """The router's, or what a router does unless told otherwise."""
        return (self.router and self.router.times) or RouterTimes()
