"""Asks engines and router what they are: the doctor's looks at a running fleet, without a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import httpx
import msgspec

from antiphon_server.doctor.fleet.answer import MalformedError, read
from antiphon_server.doctor.fleet.client import Patience, client
from antiphon_server.doctor.fleet.facts import (
    UNREADABLE,
    Engine,
    EngineSeen,
    FleetFacts,
    Mishaps,
    RouterSeen,
    RouterTimes,
    RouterTrouble,
    Trouble,
    mishaps,
    read_router,
)
from antiphon_server.doctor.fleet.target import FleetTarget
from antiphon_server.router.config.check import ask_each
from antiphon_server.router.fleet.workers import Role

_SILENT = (Trouble.SILENT, Trouble.UNHEALTHY)


class _Config(msgspec.Struct):
    settings: RouterTimes


class _Ready(msgspec.Struct):
    status: str = "waiting"
    store: str = "ok"


class _Card(msgspec.Struct):
    id: str | None = None
    max_model_len: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = None


class _Models(msgspec.Struct):
    data: list[_Card]


def look(target: FleetTarget, patience: Patience) -> FleetFacts:
    """Ask the router, and every engine that is named or that the router names."""
    router = _ask_router(target, patience) if target.router is not None else None
    named: list[tuple[Role, str]] = [("prefill", url.rstrip("/")) for url in target.prefill]
    named += [("decode", url.rstrip("/")) for url in target.decode]
    listed = router.workers if router is not None else ()
    found = [(worker.role, worker.url) for worker in listed if (worker.role, worker.url) not in named]
    return FleetFacts(
        (
            *_ask_engines(named, target, patience, found=False),
            *_ask_engines(found, target, patience, found=True),
        ),
        router,
    )


def bearer(key: str | None) -> dict[str, str]:
    """The header that carries a key, if there is one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def _ask_engines(
    named: Sequence[tuple[Role, str]], target: FleetTarget, patience: Patience, *, found: bool
) -> list[EngineSeen]:
    answers = asyncio.run(ask_each(named, target.engine_key, patience.answer))
    headers = bearer(target.engine_key)
    with client(patience.answer, left=patience.left, headers=headers) as http:
        return [seen_engine(http, asked, found=found) for asked in answers]


def seen_engine(http: httpx.Client, asked: Engine, *, found: bool) -> EngineSeen:
    """With what else an engine tells. ``found``: the router named it, nobody else."""
    if asked.kind in _SILENT:
        return EngineSeen(asked, found=found)
    card = _Card()
    counted: Mishaps | None = None
    try:
        models = http.get(f"{asked.url}/v1/models")
        card = _card(models)
        if models.status_code in {401, 403} and asked.kind is None:  # a stock engine guards nothing else
            asked = Engine(asked.role, asked.url, asked.info, "refuses the key that was given", Trouble.KEY)
        metrics = http.get(f"{asked.url}/metrics")
        counted = mishaps(metrics.text) if metrics.status_code == 200 else None
    except (httpx.HTTPError, *UNREADABLE):
        pass  # what it does not tell is not judged
    return EngineSeen(asked, counted, card.id, card.max_model_len, found)


def _ask_router(target: FleetTarget, patience: Patience) -> RouterSeen:
    assert target.router is not None
    url = target.router.rstrip("/")
    try:
        with client(patience.answer, left=patience.left) as http:
            return _seen_router(http, url, target)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return RouterSeen(url, {RouterTrouble.SILENT: f"does not answer ({error or type(error).__name__})"})
    except (MalformedError, *UNREADABLE) as error:
        return RouterSeen(url, {RouterTrouble.SILENT: f"answers as no router of this version does ({error})"})


def _seen_router(http: httpx.Client, url: str, target: FleetTarget) -> RouterSeen:
    troubles: dict[RouterTrouble, str] = {}
    health = http.get(f"{url}/health")
    if health.status_code != 200:
        return RouterSeen(url, {RouterTrouble.SILENT: f"answers {health.status_code} to {url}/health"})
    said = http.get(f"{url}/ready")
    ready = read(said.content, _Ready)
    if said.status_code != 200:
        troubles[RouterTrouble.UNREADY] = ready.status
    models = http.get(f"{url}/v1/models", headers=bearer(target.api_key))
    if models.status_code in {401, 403}:
        troubles[RouterTrouble.API_KEY] = f"{models.status_code} for /v1/models"
    card = _card(models)
    times = None
    if target.admin_key is not None:
        config = http.get(f"{url}/admin/config", headers=bearer(target.admin_key))
        if config.status_code == 200:
            times = read(config.content, _Config).settings
        else:
            troubles[RouterTrouble.ADMIN_KEY] = f"{config.status_code} for /admin/config"
    metrics = http.get(f"{url}/metrics")
    workers, loopback = read_router(metrics.text) if metrics.status_code == 200 else ((), 0)
    degraded = ready.store != "ok"
    return RouterSeen(url, troubles, workers, times, degraded, loopback, card.id, card.max_model_len)


def _card(models: httpx.Response) -> _Card:
    """The first model that is served; without a name where none is told."""
    try:
        found = read(models.content, _Models).data if models.status_code == 200 else []
    except MalformedError:
        found = []
    return found[0] if found else _Card()
