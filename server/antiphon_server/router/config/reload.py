"""SIGHUP: the configuration read anew. What can change while streams run does; what cannot is named."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from antiphon_server.router.config.config import Loaded
from antiphon_server.router.config.explain import plain
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.fleet.workers import DuplicateEngineError, Role, UnknownEngineError
from antiphon_server.router.state import State

log = logging.getLogger(__name__)

_LOOK = 0.05
"""Seconds between two looks at whether an engine that leaves is idle."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Names of settings. ``restart``: changed, but only a restart lets them count."""

    changed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    faults: tuple[str, ...] = field(default=())


class Reloads:
    """``read``: reads flags, environment and file. ``renewed``: called with the settings that now count."""

    def __init__(
        self,
        state: State,
        read: Callable[[], Loaded],
        renewed: Callable[[RouterSettings], None] = lambda settings: None,
    ) -> None:
        self._state = state
        self._read = read
        self._renewed = renewed
        self._one_at_a_time = asyncio.Lock()
        self._leaving: dict[tuple[Role, str], asyncio.Task[None]] = {}

    async def reload(self) -> Reloaded:
        """One reading. A faulty one changes nothing."""
        async with self._one_at_a_time:
            try:
                reloaded = await self._reload()
            except Exception as error:
                log.exception("config.reload_failed")
                reloaded = Reloaded(faults=(str(error),))
        self._state.metrics.reloads.labels("faulty" if reloaded.faults else "taken").inc()
        return reloaded

    async def _reload(self) -> Reloaded:
        loaded = await asyncio.to_thread(self._read)
        if loaded.settings is None:
            faults = tuple(map(str, loaded.faults))
            log.error("config.faulty", extra={"faults": faults, "kept": "the settings as they were"})
            return Reloaded(faults=faults)
        old, new = self._state.settings, loaded.settings
        differ = [name for name in RouterSettings.model_fields if getattr(old, name) != getattr(new, name)]
        live = tuple(name for name in differ if name in LIVE)
        restart = tuple(name for name in differ if name not in LIVE)
        now = old.model_copy(update={name: getattr(new, name) for name in live})
        self._state.reconfigure(now)
        for role in ("prefill", "decode"):
            await self._engines(role, getattr(old, role), getattr(now, role))
        if "log_level" in live:
            logging.getLogger().setLevel(now.log_level.upper())
        self._renewed(now)
        shown = plain(now)
        log.info("config.reloaded", extra={"changed": {name: shown[name] for name in live}})
        if restart:
            log.warning("config.needs_restart", extra={"settings": restart})
        return Reloaded(live, restart)

    async def _engines(self, role: Role, old: list[str], new: list[str]) -> None:
        """Those an administrator or discovery added are not the file's to remove."""
        workers = self._state.workers
        for url in new:
            leaving = self._leaving.pop((role, url), None)
            if leaving is not None:
                leaving.cancel()
                workers.undrain(role, url)
        for url in set(new) - set(old):
            try:
                await workers.add(role, url)
            except DuplicateEngineError:
                log.info("engine.known", extra={"worker": url, "role": role})
        for url in set(old) - set(new):
            try:
                workers.drain(role, url)
            except UnknownEngineError:
                continue
            self._leaving[role, url] = asyncio.create_task(self._leave(role, url))

    async def _leave(self, role: Role, url: str) -> None:
        """Remove an engine once its legs are over, or ``shutdown_grace`` is."""
        workers = self._state.workers
        try:
            async with asyncio.timeout(self._state.settings.shutdown_grace):
                while any(w.url == url and w.role == role and w.in_flight for w in workers):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK)
        except TimeoutError:
            log.warning("engine.removed_busy", extra={"worker": url, "role": role})
        del self._leaving[role, url]
        try:
            await workers.remove(role, url)
        except UnknownEngineError:
            log.info("engine.gone", extra={"worker": url, "role": role})


LIVE = frozenset(
    {
        "admin_key",
        "api_keys",
        "append_slowdown",
        "append_stall",
        "attempts",
        "body_timeout",
        "connect_timeout",
        "decode",
        "decode_timeout",
        "idle_timeout",
        "keep",
        "keep_alive",
        "keep_share",
        "keys_file",
        "lease_margin",
        "lease_ttl",
        "least_chance",
        "load_bound",
        "log_level",
        "max_body",
        "max_headers",
        "max_reply",
        "max_turns",
        "metrics_key",
        "paths",
        "prefill",
        "prefill_timeout",
        "pressure_high",
        "pressure_low",
        "probe_interval",
        "probe_timeout",
        "queue",
        "queue_timeout",
        "renew_interval",
        "responses",
        "retry_pause",
        "salt_secret",
        "shutdown_grace",
        "tenant_conversations",
        "tenant_salt",
        "tenant_turns",
        "trust_forwarded_tenant",
        "turn_log",
    }
)
"""Settings that count at once when they change: read anew by each turn, or handed on by
``State.reconfigure``."""
