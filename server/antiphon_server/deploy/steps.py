"""The commands that bring a rendered site to its hosts and start it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from antiphon_server.deploy.host_files import HostFiles
from antiphon_server.deploy.site import Host, Site

REMOTE = "antiphon"
"""Folder in the login's home."""
FIRST_START_S = 3600
"""To wait for engines that fetch their model first."""
NEW_KEY = '[ -n "$KEY" ] || [ -z "$ASKED" ] || KEY=$(openssl rand -hex 32)'
NO_KEY = ': "${KEY:?some host was not reached, or none has a key: look, then set KEY to the one for all}"'
"""A second key would cut off those that have the first."""


def steps(site: Site, hosts: Sequence[HostFiles], out: Path) -> list[str]:
    """Lines for a shell on the machine that rendered them, comments between. ``hosts``: all or some."""
    # Without -n it would take the lines that follow for its input.
    ssh = {one.name: f"ssh -n {_login(site, one.host)}" for one in hosts}
    engines = [one for one in hosts if one.engines]
    routers = [one for one in hosts if one.router_url]
    lines = [
        f"# Before: antiphon doctor {shlex.quote(str(out))}",
        "# 1. Copy. The wheel of Antiphon: pip wheel --no-deps --wheel-dir dist . in its checkout",
    ]
    for one in hosts:
        to = f"{_login(site, one.host)}:{REMOTE}/"
        lines.append(f"rsync -a {shlex.quote(f'{out / one.name}/')} dist/antiphon-*.whl {to}")
    lines.append("# 2. Software, once a host; may ask for a reboot and to be run again")
    lines += [f"{ssh[one.name]} sudo {REMOTE}/prepare.sh" for one in hosts]
    lines += _key(site, hosts)
    lines.append("# 4. Start: engines everywhere, the routers beside them")
    lines += [f"{ssh[one.name]} sudo {REMOTE}/start.sh" for one in hosts]
    lines.append("# 5. Wait until all is up (the first start fetches the model)")
    lines += [
        f"{ssh[one.name]} sudo {REMOTE}/check.sh --wait {FIRST_START_S}"
        for one in [*engines, *_others(routers, engines)]
    ]
    lines += [f"# The router: {one.router_url}/v1" for one in routers]
    return lines


def _key(site: Site, hosts: Sequence[HostFiles]) -> list[str]:
    """The key that is there, wherever; a new one only where all hosts are to get it."""
    every = " ".join(_login(site, host) for host in site.hosts.values())
    new = [NEW_KEY] if len(hosts) == len(site.hosts) else []
    return [
        "# 3. One key for all engines and routers: the one that a host has already, else a new one",
        'KEY="${KEY:-}" ASKED=yes',
        f"for HOST in {every}; do",
        f'    [ -n "$KEY" ] || KEY=$(ssh -n "$HOST" sudo {REMOTE}/key.sh --show) || ASKED=',
        "done",
        *new,
        NO_KEY,
        *(f"printf '%s\\n' \"$KEY\" | ssh {_login(site, one.host)} sudo {REMOTE}/key.sh" for one in hosts),
    ]


def _login(site: Site, host: Host) -> str:
    return shlex.quote(f"{site.login}@{host.address}")


def _others(some: Sequence[HostFiles], told: Sequence[HostFiles]) -> list[HostFiles]:
    return [one for one in some if one not in told]
