"""``antiphon hosts``: render a fleet over several hosts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon_server.failing import fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from antiphon_server.deploy.host_files import HostFiles

OUT = Path("out/hosts")


def hosts(
    site: Annotated[str, typer.Argument(metavar="SITE.yaml", help="Hosts, their roles, settings.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Only this host; may be given again. Default: all.")
    ] = None,
    out: Annotated[
        str, typer.Option(metavar="FOLDER", help="Folder to write a folder for each host into.")
    ] = str(OUT),
    show: Annotated[bool, typer.Option("--print", help="Print the files; write nothing.")] = False,
) -> None:
    """Render a fleet over several hosts: environment files, systemd units, scripts, and the commands to copy.

    Nothing is sent to the hosts. Ends with 0, or with 1 and every fault of the site.
    """
    from antiphon_server.deploy.host_files import render_hosts
    from antiphon_server.deploy.host_folders import write
    from antiphon_server.deploy.read import read
    from antiphon_server.deploy.rules import notices_of
    from antiphon_server.deploy.steps import steps
    from antiphon_server.stack.validate import ValidationError

    try:
        place = _path("--out", out)
        found = read(_path("SITE.yaml", site))
        rendered = render_hosts(found)
        chosen = _chosen(rendered, host)
        removed = [] if show else write(chosen, found.hosts, place)
    except (ValidationError, OSError) as error:
        fail(str(error), 1)
    for notice in [*notices_of(found), *removed]:
        typer.echo(f"notice: {notice}", err=True)
    if show:
        for one in chosen:
            for path, text in one.files.items():
                if not path.endswith(".sh"):
                    typer.echo(f"### {one.name}/{path}\n{text}")
    typer.echo("\n".join(steps(found, chosen, place)))


def _path(name: str, given: str) -> Path:
    if not given.strip():
        fail(f"{name} is empty: name one; is the variable set that it was taken from?", 1)
    return Path(given)


def _chosen(rendered: Sequence[HostFiles], names: Sequence[str] | None) -> list[HostFiles]:
    known = [one.name for one in rendered]
    for name in names or ():
        if name not in known:
            fail(f"--host = {name}: no such host; the site has {', '.join(known)}", 1)
    return [one for one in rendered if not names or one.name in names]
