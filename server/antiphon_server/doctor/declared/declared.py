"""What a manifest declares: engines, routers and stores, each in one form wherever it was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antiphon_server.doctor.declared.box import Box
from antiphon_server.doctor.finding import Finding
from antiphon_server.stack.flags import Flags
from antiphon_server.stack.settings import Role

HIDDEN = "\N{HORIZONTAL ELLIPSIS}"
"""Marks a value that is filled in where it runs: a secret, a field of the pod."""

EXTRA = "kv_connector_extra_config"
SECRETS_FILE = "/etc/antiphon/secrets.env"
"""Of a host, for the units; only root may read it."""


@dataclass(frozen=True, slots=True)
class Engine:
    """``subject``: where it stands and its name. ``env``: what is set for it; a value that begins with
    :data:`HIDDEN` is not known here."""

    subject: str
    role: Role
    flags: Flags
    env: Mapping[str, str]
    box: Box

    @property
    def transfer(self) -> Mapping[str, Any]:
        """The KV transfer configuration, empty where there is none."""
        return self.flags.transfer or {}

    @property
    def extra(self) -> Mapping[str, Any]:
        """Its extra configuration."""
        extra = self.transfer.get(EXTRA)
        return extra if isinstance(extra, Mapping) else {}

    @property
    def reuses(self) -> bool:
        """The flag for both directions is on."""
        return bool(self.extra.get("bidirectional_kv_xfer", False))

    @property
    def model(self) -> str | None:
        """As it is loaded; ``vllm serve`` has it without a flag."""
        return self.flags.get("model") or next(iter(self.flags.words), None)

    @property
    def fabric(self) -> bool:
        """It is meant for EFA."""
        return "LIBFABRIC" in self.backends or self.env.get("FI_PROVIDER") == "efa" or self.box.efa > 0

    @property
    def backends(self) -> tuple[str, ...]:
        """NIXL's, as given; vLLM takes UCX where nothing is said."""
        given = self.extra.get("backends")
        return tuple(map(str, given)) if isinstance(given, list | tuple) else ()

    @property
    def key(self) -> str | None:
        """The API key that it asks for."""
        return self.flags.get("api-key") or self.env.get("VLLM_API_KEY") or None


@dataclass(frozen=True, slots=True)
class Router:
    """``flags``: its settings by name, from the command line. ``env``: what is set for it, hidden values too.
    ``config``: its file, where it can be read. ``unseen``: settings may come from what cannot be seen."""

    subject: str
    flags: Mapping[str, Any]
    env: Mapping[str, str]
    box: Box
    config: Path | None = None
    unseen: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """A Redis or Valkey server. ``words``: its command line."""

    subject: str
    words: tuple[str, ...]
    env: Mapping[str, str]
    box: Box


@dataclass(frozen=True, slots=True)
class Plain:
    """A secret that is readable in the file. Its value is not kept. ``file``: an environment file that every
    user of this machine may read; None: the manifest itself."""

    subject: str
    name: str
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """What runs together. ``services``: labels of Kubernetes services, for discovery. ``unread``: what could
    not be understood, as findings."""

    engines: tuple[Engine, ...] = ()
    routers: tuple[Router, ...] = ()
    stores: tuple[Store, ...] = ()
    plain: tuple[Plain, ...] = ()
    services: tuple[Mapping[str, str], ...] = ()
    unread: tuple[Finding, ...] = ()

    def of(self, role: Role) -> Iterator[Engine]:
        """Engines of that role."""
        return (engine for engine in self.engines if engine.role is role)

    def __add__(self, other: Declared) -> Declared:
        return replace(
            self,
            **{name: getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__},
        )

    def __bool__(self) -> bool:
        return bool(self.engines or self.routers or self.stores)
