"""The commands that bring a rendered site to its hosts and start it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from antiphon_server.deploy.host_files import HostFiles
from antiphon_server.deploy.site import Site

REMOTE = "antiphon"
"""Folder in the login's home."""
SECRETS = "sudo install -D -m 0600 /dev/stdin /etc/antiphon/secrets.env"
KEY = f"printf 'ANTIPHON_ENGINE_KEY=%s\\n' \"$KEY\" | {{ssh}} '{SECRETS}'"


def steps(site: Site, hosts: Sequence[HostFiles], out: Path) -> list[str]:
    """Lines for a shell on the machine that rendered them, comments between. ``hosts``: all or some."""
    ssh = {one.name: f"ssh {shlex.quote(f'{site.login}@{one.host.address}')}" for one in hosts}
    engines = [one for one in hosts if one.engines]
    routers = [one for one in hosts if one.router_url]
    lines = [
        f"# Before: antiphon doctor {shlex.quote(str(out))}",
        "# 1. Copy. The wheel of Antiphon: pip wheel --no-deps --wheel-dir dist . in its checkout",
    ]
    for one in hosts:
        to = shlex.quote(f"{site.login}@{one.host.address}:{REMOTE}/")
        lines.append(f"rsync -a {shlex.quote(f'{out / one.name}/')} dist/antiphon-*.whl {to}")
    lines.append("# 2. Software, once a host; may ask for a reboot and to be run again")
    lines += [f"{ssh[one.name]} sudo {REMOTE}/prepare.sh" for one in hosts]
    lines += ["# 3. One key for all engines and routers", "KEY=$(openssl rand -hex 32)"]
    lines += [KEY.format(ssh=ssh[one.name]) for one in hosts]
    lines.append("# 4. Start: engines everywhere, the routers beside them")
    lines += [f"{ssh[one.name]} sudo {REMOTE}/start.sh" for one in hosts]
    lines.append("# 5. Wait until all is up (engines load the model: minutes)")
    lines += [
        f"{ssh[one.name]} sudo {REMOTE}/check.sh --wait 1800"
        for one in [*engines, *_others(routers, engines)]
    ]
    lines += [f"# The router: {one.router_url}/v1" for one in routers]
    return lines


def _others(some: Sequence[HostFiles], told: Sequence[HostFiles]) -> list[HostFiles]:
    return [one for one in some if one not in told]
