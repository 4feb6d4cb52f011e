"""``antiphon router``: the data plane as a process. Imports of weight stay inside."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def router(
    prefill: Annotated[
        list[str] | None, typer.Option(help="URL of a prefill engine; once per engine.")
    ] = None,
    decode: Annotated[list[str] | None, typer.Option(help="URL of a decode engine; once per engine.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.  [default: 8000]")] = None,
    reuse: Annotated[
        bool | None,
        typer.Option("--reuse/--no-reuse", help="Start turns from decode's KV.  [default: reuse]"),
    ] = None,
    keep: Annotated[
        float | None, typer.Option(help="Seconds that an idle conversation's KV is kept.  [default: 480]")
    ] = None,
    conversations: Annotated[
        int | None, typer.Option(help="Most conversations whose KV is kept.  [default: 10000]")
    ] = None,
    lease_ttl: Annotated[
        float | None, typer.Option(help="Seconds asked for at each renewal.  [default: 60]")
    ] = None,
    renew_interval: Annotated[
        float | None, typer.Option(help="Seconds between renewals.  [default: 15]")
    ] = None,
    prefill_timeout: Annotated[
        float | None, typer.Option(help="Seconds that prefill may take.  [default: 600]")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve the OpenAI API over prefill and decode engines; turns of a conversation start from its KV.

    Every option, and those not listed here, can be set as ANTIPHON_<NAME>, e.g. ANTIPHON_ENGINE_KEY for the
    key that the engines ask for. SIGTERM and Ctrl-C let turns in flight end, then release what is kept.
    """
    import uvicorn
    from pydantic import ValidationError

    from antiphon_server.router.app import create_app
    from antiphon_server.router.logs import log_to_stderr
    from antiphon_server.router.settings import RouterSettings

    options: dict[str, Any] = {
        "prefill": prefill,
        "decode": decode,
        "host": host,
        "port": port,
        "reuse": reuse,
        "keep": keep,
        "conversations": conversations,
        "lease_ttl": lease_ttl,
        "renew_interval": renew_interval,
        "prefill_timeout": prefill_timeout,
    }
    try:
        settings = RouterSettings(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        for problem in error.errors():
            name = ".".join(str(part) for part in problem["loc"]) or "settings"
            typer.echo(f"{name}: {problem['msg']}", err=True)
        raise typer.Exit(2) from None
    if not settings.prefill or not settings.decode:
        typer.echo("name at least one --prefill URL and one --decode URL", err=True)
        raise typer.Exit(2)
    log_to_stderr(log_level)
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
        log_config=None,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_grace)),
        backlog=4096,
    )
    uvicorn.Server(config).run()
