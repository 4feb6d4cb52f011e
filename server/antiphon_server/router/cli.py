"""``antiphon router`` and ``antiphon check-config``. Imports of weight stay inside."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from antiphon_server.failing import fail
from antiphon_server.router.config.flags import ConfigPath, flags_of, with_settings


@with_settings
def router(config: ConfigPath = None, **given: Any) -> None:
    """Serve the OpenAI API over prefill and decode engines; turns of a conversation start from its KV.

    A flag wins over its environment variable, that over the file, that over the default. SIGTERM and Ctrl-C
    let turns in flight end, then release what is kept; a second one ends at once. SIGHUP reads file and
    environment again.
    """
    from antiphon_server.router.config.config import load
    from antiphon_server.router.logs import log_to_stderr
    from antiphon_server.router.server import run

    flags = flags_of(given)
    loaded = load(flags, os.environ, config)
    if loaded.settings is None:
        fail(loaded.explain())
    log_to_stderr(loaded.settings.log_level)
    raise typer.Exit(run(loaded, lambda: load(flags, os.environ, config)))


@with_settings
def check_config(
    config: ConfigPath = None,
    probe: Annotated[bool, typer.Option("--probe", help="Ask every engine too.", show_default=False)] = False,
    **given: Any,
) -> None:
    """Explain every fault of the configuration that 'antiphon router' would start with.

    Exit code: 0 sound, 1 sound but --probe found an engine that does not go with it, 2 faulty.
    """
    from antiphon_server.router.config.check import ask_engines
    from antiphon_server.router.config.config import load

    loaded = load(flags_of(given), os.environ, config)
    if loaded.settings is None:
        typer.echo(loaded.explain())
        typer.echo(f"faults: {len(loaded.faults)}")
        raise typer.Exit(2)
    if text := loaded.explain():
        typer.echo(text)
    if not probe:
        typer.echo("the configuration is sound")
        return
    report = ask_engines(loaded.settings)
    for line in report.lines:
        typer.echo(line)
    typer.echo(report.verdict)
    raise typer.Exit(0 if report.sound else 1)
