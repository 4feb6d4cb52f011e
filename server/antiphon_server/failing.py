"""How a command ends that cannot do what it was asked."""

from __future__ import annotations

from typing import NoReturn

import typer


def fail(message: str, code: int = 2) -> NoReturn:
    """Say why on stderr, and exit with ``code``."""
    typer.echo(message, err=True)
    raise typer.Exit(code)
