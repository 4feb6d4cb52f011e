"""What lies on each host: environment files, units, scripts, and the commands for people to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from antiphon_server.deploy.engines import PlacedEngine, engines_of
from antiphon_server.deploy.environment_file import text_of
from antiphon_server.deploy.rules import router_texts
from antiphon_server.deploy.site import ROUTER_PORT, Host, Site
from antiphon_server.stack.command import shell_lines
from antiphon_server.stack.settings import Role

ENGINE_UNIT = "antiphon-engine@.service"
ROUTER_UNIT = "antiphon-router.service"
GRACE = 30.0
"""Of the router, unless it is told another."""
STOP_MARGIN = 60
"""Seconds between the router's grace and its end: pulls of clients that left end, leases are released."""
STANDING_STOP = 90
"""``TimeoutStopSec`` of the router's unit as it stands."""


@dataclass(frozen=True, slots=True)
class HostFiles:
    """``files``: texts by their name in the host's folder."""

    name: str
    host: Host
    engines: tuple[PlacedEngine, ...]
    router_url: str | None
    files: Mapping[str, str]


def render_hosts(site: Site) -> list[HostFiles]:
    """The files of every host, in the order of the site.

    Raises:
        FileNotFoundError: Antiphon was installed without its units and scripts.
    """
    engines = {name: tuple(engines_of(site, host)) for name, host in site.hosts.items()}
    every = [engine for own in engines.values() for engine in own]
    return [_host(site, name, host, engines[name], every) for name, host in site.hosts.items()]


def standing(kind: str) -> dict[str, str]:
    """The files that are the same on every host, by name. ``kind``: ``systemd`` or ``efa``.

    Raises:
        FileNotFoundError: they are not there.
    """
    here = Path(__file__)
    # In a wheel they lie in the package; in a checkout where people look for them.
    for folder in (here.with_name("files") / kind, here.parents[2] / "deploy" / kind):
        if folder.is_dir():
            kept = (path for path in sorted(folder.iterdir()) if path.suffix in {".service", ".sh"})
            return {path.name: path.read_text(encoding="utf-8") for path in kept}
    raise FileNotFoundError(f"no folder {kind} beside {here}: install antiphon from its wheel or a checkout")


def _host(
    site: Site, name: str, host: Host, own: tuple[PlacedEngine, ...], every: list[PlacedEngine]
) -> HostFiles:
    units = standing("systemd")
    files = dict(standing("efa"))
    url = f"http://{host.address}:{site.router.get('port', ROUTER_PORT)}" if host.router else None
    for engine in own:
        heading = f"{engine.spec.name} on {name}; read by {ENGINE_UNIT}"
        files[f"engine-{engine.spec.name}.env"] = text_of(engine.env, heading)
    if own:
        files[ENGINE_UNIT] = units[ENGINE_UNIT]
        files["commands.txt"] = _commands(own)
    if host.router:
        heading = f"router on {name}; read by {ROUTER_UNIT}"
        files["router.env"] = text_of(router_env(site, host, every), heading)
        files[ROUTER_UNIT] = _stopping_in_time(units[ROUTER_UNIT], site)
    files["host.env"] = text_of(_host_env(site, own, url), f"{name}; read by the scripts")
    return HostFiles(name, host, own, url, files)


def router_env(site: Site, host: Host, engines: list[PlacedEngine]) -> dict[str, str]:
    """What ``antiphon router`` is told."""
    urls = {role: ",".join(e.spec.url for e in engines if e.spec.role is role) for role in Role}
    made = {
        "ANTIPHON_HOST": host.address,
        "ANTIPHON_PORT": str(ROUTER_PORT),
        "ANTIPHON_PREFILL": urls[Role.PREFILL],
        "ANTIPHON_DECODE": urls[Role.DECODE],
    }
    return {**made, **router_texts(site)}


def _stopping_in_time(unit: str, site: Site) -> str:
    """The unit, which kills the router only when its turns have had their time."""
    seconds = max(STANDING_STOP, int(float(site.router.get("shutdown_grace", GRACE))) + STOP_MARGIN)
    return unit.replace(f"TimeoutStopSec={STANDING_STOP}\n", f"TimeoutStopSec={seconds}\n")


def _host_env(site: Site, own: tuple[PlacedEngine, ...], url: str | None) -> dict[str, str]:
    return {
        "PRESET": site.preset.value,
        "CACHE": site.cache,
        "ENGINES": " ".join(engine.spec.name for engine in own),
        "ENGINE_URLS": " ".join(engine.spec.url for engine in own),
        "ROUTER_URL": url or "",
    }


def _commands(own: tuple[PlacedEngine, ...]) -> str:
    """For people and ``antiphon doctor``: what the units become."""
    lines = shell_lines(engine.spec for engine in own)
    return "\n".join(["# To read: what antiphon-engine@ turns into on this host.", *lines, ""])
