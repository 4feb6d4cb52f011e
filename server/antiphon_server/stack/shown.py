"""What ``--print`` shows."""

from __future__ import annotations

import re
from collections.abc import Sequence

import typer

from antiphon_server.failing import fail
from antiphon_server.stack.command import ProcessSpec
from antiphon_server.stack.settings import StackSettings


def show(settings: StackSettings, specs: Sequence[ProcessSpec]) -> None:
    """The commands, what this machine lacks to run them, and what no machine would."""
    from antiphon_server.stack import validate
    from antiphon_server.stack.command import shell_lines

    typer.echo("\n".join(shell_lines(specs)))
    for fault in validate.machine_faults(settings, validate.survey()):
        typer.echo(f"not on this machine: {fault}", err=True)
    if faults := validate.settings_faults(settings):
        fail("\n".join(map(str, faults)), 1)


def cut_secrets(flags: str) -> str:
    """Flags that no shell can read: up to the first that has a secret, whose end cannot be known."""
    from antiphon_server.stack.command import secret_of

    for found in re.finditer(r"--[\w-]+", flags):
        if secret_of(found[0]):
            return f"{flags[: found.end()]} ***"
    return flags
