"""``antiphon bench sweep``: TTFT of second turns, cold against reuse."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, NoReturn

import typer

DEFAULT_LENGTHS = "1000,2000,4000,8000"


def sweep(
    model: Annotated[
        str, typer.Option(help="tiny, smollm2, a folder with config.json, or a hub id.")
    ] = "tiny",
    lengths: Annotated[
        str, typer.Option(help="Tokens of the second turn's prompt, comma-separated.")
    ] = DEFAULT_LENGTHS,
    repeat: Annotated[int, typer.Option(min=1, help="Conversations for each figure; the median counts.")] = 2,
    new: Annotated[int, typer.Option(min=1, help="New tokens of the second turn.")] = 300,
    answer: Annotated[int, typer.Option(min=1, help="Tokens of the first turn's answer.")] = 200,
    router: Annotated[
        str | None, typer.Option(help="URL of a router that runs already, instead of a stack of our own.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the router; the next free one if it is taken.")] = 8000,
    at_least: Annotated[
        float | None, typer.Option(help="Fail unless cold / reuse at the longest prompt reaches this.")
    ] = None,
    chart: Annotated[Path, typer.Option(help="The picture.")] = Path("out/bench.png"),
    json: Annotated[Path | None, typer.Option(help="All figures; default: beside the picture.")] = None,
) -> None:
    """Measure TTFT of a conversation's second turn, cold and with reuse, over prompt lengths.

    Every answer is compared. Ends with 0, with 1 if an answer differs, nothing was reused, or the gain is
    below --at-least, with 2 if it could not be run.
    """
    import os

    import httpx
    import openai

    from antiphon_server.bench import site as sites
    from antiphon_server.bench.keep import write_json
    from antiphon_server.bench.screen import screen
    from antiphon_server.bench.sweep.chart import draw
    from antiphon_server.bench.sweep.measure import Plan, measure
    from antiphon_server.bench.sweep.record import exit_code
    from antiphon_server.bench.sweep.table import summary, tables
    from antiphon_server.stack.settings import ALWAYS_REUSE, Override, StackSettings

    console = screen()
    load = os.getloadavg()[0]
    key = os.environ.get("ANTIPHON_ENGINE_KEY") or None
    with contextlib.ExitStack() as stack:
        try:
            plan = Plan(_lengths(lengths), repeat, new, answer)
            if router is not None:
                site = stack.enter_context(sites.running(router, key=key))
            else:
                # Its endpoint to empty the prefix cache is the only way to measure both states in one run.
                settings = StackSettings(
                    model=model,
                    port=port,
                    key=key,
                    overrides={"prefill": Override(env={"VLLM_SERVER_DEV_MODE": "1"})},
                    router_env=ALWAYS_REUSE,
                )
                site = stack.enter_context(sites.started(settings, console))
            measured = measure(site, plan, lambda text: console.print(text, highlight=False), load=load)
        except (sites.SiteError, ValueError) as error:
            _fail(str(error))
        except (openai.APIError, httpx.HTTPError, TimeoutError) as error:
            _fail(f"a turn failed ({type(error).__name__}: {error}); the engines' logs have the cause")
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
    draw(measured, chart)
    write_json(measured, json or chart.with_suffix(".json"))
    console.print()
    console.print(tables(measured))
    console.print(f"chart: {chart}   figures: {json or chart.with_suffix('.json')}", highlight=False)
    for text in summary(measured, at_least):
        console.print(text, markup=False, highlight=False)
    raise typer.Exit(exit_code(measured, at_least))


def _lengths(text: str) -> tuple[int, ...]:
    try:
        lengths = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise ValueError(f"--lengths {text!r} is not a list of numbers: write it like 1000,4000") from None
    return lengths


def _fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)
