"""``antiphon demo``: an agent's conversation on real engines, without and with reuse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon_server.failing import fail


def demo(
    model: Annotated[
        str, typer.Option(help="smollm2, tiny, a folder with config.json, or a hub id.")
    ] = "smollm2",
    turns: Annotated[int, typer.Option(min=5, max=20, help="Turns of the conversation.")] = 6,
    port: Annotated[int, typer.Option(help="Port of the router; the next free one if it is taken.")] = 8000,
    chart: Annotated[Path, typer.Option(help="The picture.")] = Path("out/demo.png"),
    json: Annotated[Path | None, typer.Option(help="All figures; default: beside the picture.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running until Ctrl-C.")] = False,
) -> None:
    """Let an agent investigate an incident twice, without and with reuse of decode's KV, and compare.

    Starts a prefill engine, a decode engine and the router on this machine. Ends with 0 if all answers
    are the same and KV was reused, with 1 if not, with 2 if it could not be run.
    """
    import os

    import httpx
    import openai

    from antiphon_server.bench.keep import write_json
    from antiphon_server.bench.screen import screen
    from antiphon_server.bench.site import SiteError, started
    from antiphon_server.demo import show
    from antiphon_server.demo.agent import script
    from antiphon_server.demo.chart import draw
    from antiphon_server.demo.runs import investigate_twice
    from antiphon_server.stack.settings import ALWAYS_REUSE, StackSettings

    console = screen()
    load = os.getloadavg()[0]
    show.opening(console, model, turns)
    settings = StackSettings(model=model, port=port, prefill_cache=False, router_env=ALWAYS_REUSE)
    code = 1
    try:
        with started(settings, console) as site:
            with show.watcher(console) as watcher:
                record = investigate_twice(site, script(turns), watcher, load=load)
            show.closing(console, record)
            draw(record, chart)
            write_json(record, json or chart.with_suffix(".json"))
            console.print(f"chart: {chart}   figures: {json or chart.with_suffix('.json')}")
            code = record.verdict.exit_code
            if keep:
                show.wait(console, site)
    except SiteError as error:
        fail(str(error))
    except (openai.APIError, httpx.HTTPError) as error:
        fail(f"a turn failed ({type(error).__name__}: {error}); the engines' logs have the cause")
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(code)
