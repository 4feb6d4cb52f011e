"""``antiphon key``: a fresh API key for a tenant, and what the keys file holds of it."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphon_server.failing import fail
from antiphon_server.router.gate.keys import KeysError, check_tenant, fresh_key, hash_of


def key(tenant: Annotated[str, typer.Argument(help="Name of the tenant that the key is for.")]) -> None:
    """Print a fresh API key, once, and the line for the keys file."""
    try:
        check_tenant(tenant)
    except KeysError as error:
        fail(str(error))
    fresh = fresh_key()
    typer.echo("Give the tenant this key, it is kept nowhere:", err=True)
    typer.echo(fresh)
    typer.echo("Add to the keys file:", err=True)
    typer.echo(f'- {{tenant: "{tenant}", hash: "{hash_of(fresh)}"}}')
