"""A declared router's settings, read by what reads them when it starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon_server.doctor.declared.declared import HIDDEN, Declared, Router
from antiphon_server.environment import PREFIX
from antiphon_server.router.config.config import load
from antiphon_server.router.config.explain import Fault
from antiphon_server.router.config.options import FILE_TWIN, options
from antiphon_server.router.config.settings import RouterSettings

_OF_THE_PLACE = ("keys_file", "tls_cert", "tls_key", "config")
"""Name files that are there only where the router runs."""


@dataclass(frozen=True, slots=True)
class Settled:
    """``settings``: with defaults for what is hidden or faulty. ``hidden``: names of what is filled in where
    it runs. ``engine_key``: as it is written, hidden ones marked."""

    router: Router
    settings: RouterSettings
    faults: tuple[Fault, ...]
    notices: tuple[str, ...]
    hidden: frozenset[str]
    engine_key: str | None
    given: frozenset[str]

    def shows(self, *names: str) -> bool:
        """None of these settings is hidden, so that they can be judged."""
        return self.hidden.isdisjoint(names)


def settled(router: Router) -> Settled:
    """The settings of one router."""
    names = {option.variable: option.name for option in options()}
    names |= {f"{option.variable}{FILE_TWIN.upper()}": option.name for option in options() if option.secret}
    hidden: set[str] = set()
    env: dict[str, str] = {}
    for variable, value in router.env.items():
        name = names.get(variable)
        if variable == PREFIX + "CONFIG":
            continue
        away = router.box.container or value.startswith(HIDDEN)
        if name is not None and value and (value.startswith(HIDDEN) or _elsewhere(variable, name, away)):
            hidden.add(name)
        else:
            env[variable] = value
    flags: dict[str, Any] = {}
    for name, value in router.flags.items():
        plain = name.removesuffix(FILE_TWIN) if name not in names.values() else name
        if HIDDEN in str(value) or name in _OF_THE_PLACE or plain != name:
            hidden.add(plain)
        else:
            flags[name] = value
    loaded = load(flags, _ours(env), router.config)
    if router.unseen:
        hidden |= {option.name for option in options()} - set(loaded.given)
    faults = tuple(fault for fault in loaded.faults if not _about(fault, hidden))
    settings = loaded.readable
    assert settings is not None
    secret = settings.engine_key.get_secret_value() if settings.engine_key is not None else None
    if "engine_key" in hidden:
        told = router.env.get("ANTIPHON_ENGINE_KEY") or router.env.get("ANTIPHON_ENGINE_KEY_FILE", "")
        secret = told if told.startswith(HIDDEN) else f"{HIDDEN} {told}"
    given = frozenset(loaded.given) | hidden
    return Settled(router, settings, faults, loaded.notices, frozenset(hidden), secret, given)


def routers_of(fleet: Declared) -> list[Settled]:
    """Of all routers."""
    return [settled(router) for router in fleet.routers]


def _about(fault: Fault, hidden: set[str]) -> bool:
    """The fault is one of hidden settings, or of what others have to do with them."""
    if fault.key != "settings":
        return fault.key in hidden
    return any(re.search(rf"\b{name}\b", fault.problem) for name in hidden)


def _elsewhere(variable: str, name: str, away: bool) -> bool:
    return away and (name in _OF_THE_PLACE or variable.endswith(FILE_TWIN.upper()))


def _ours(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.upper().startswith(PREFIX)}
