"""``antiphon bench sweep``: TTFT over prompt length, without reuse and with each of its paths."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon_server.bench.bounds import finite, positive
from antiphon_server.failing import fail

if TYPE_CHECKING:
    from antiphon_server.bench.site import Site
    from antiphon_server.bench.sweep.plan import Plan
    from antiphon_server.bench.sweep.presets import Preset


def sweep(
    preset: Annotated[
        str, typer.Option(help="cpu, announcement-qwen3-32b or announcement-glm-5: method and sizes.")
    ] = "cpu",
    router: Annotated[
        list[str] | None,
        typer.Option(
            help="URL of a router that runs already: measured without and with conversation ids. Or "
            "NAME=URL, once for each arm, of routers with other --paths over the same engines. Default: a "
            "stack of our own."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Of our own stack: tiny, smollm2, a folder, or a hub id.")
    ] = None,
    arms: Annotated[str, typer.Option(help="Of our own stack, comma-separated.")] = "off,reuse,append,auto",
    lengths: Annotated[str | None, typer.Option(help="Tokens of the prefix, comma-separated.")] = None,
    conversations: Annotated[int | None, typer.Option(min=1, help="For each length and arm.")] = None,
    turns: Annotated[int | None, typer.Option(min=2, help="Of each conversation.")] = None,
    new: Annotated[int | None, typer.Option(min=1, help="New tokens of each turn.")] = None,
    answer: Annotated[int | None, typer.Option(min=1, help="Tokens of each answer.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="Turns in flight at once.")] = None,
    active: Annotated[int | None, typer.Option(min=1, help="Conversations open at once.")] = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="How often all is measured.")] = None,
    settle: Annotated[
        float | None, typer.Option(min=0, max=3600, callback=finite, help="Seconds between two runs.")
    ] = None,
    port: Annotated[int, typer.Option(help="First port of our own routers; next free ones else.")] = 8000,
    at_least: Annotated[
        float | None,
        typer.Option(
            callback=positive,
            help="Fail unless off / reuse at the longest prefix, prefill's cache empty, reaches it.",
        ),
    ] = None,
    auto_within: Annotated[
        float | None,
        typer.Option(callback=positive, help="Fail where auto / off is above this at any length, e.g. 1.05."),
    ] = None,
    api_key: Annotated[
        str, typer.Option(envvar="OPENAI_API_KEY", help="Clients' key of those routers.", show_default=False)
    ] = "none",
    out: Annotated[Path, typer.Option(help="Folder of figures and tables.")] = Path("out/sweep"),
    json: Annotated[Path | None, typer.Option(help="Everything as JSON; default: in that folder.")] = None,
) -> None:
    """Measure TTFT over prompt length: reuse off, reuse, append, and the router's own choice (auto).

    The same conversations run through all of them in turn, and every answer is compared. Ends with 0; with 1
    if an answer differs, nothing was reused or a limit is not kept, even if chance may be the reason; with 2
    if it could not be run.
    """
    import os

    import httpx
    import openai

    from antiphon_server.bench import arms as ways
    from antiphon_server.bench import site as sites
    from antiphon_server.bench.keep import made
    from antiphon_server.bench.refusal import plain, refusal, remedy
    from antiphon_server.bench.screen import screen
    from antiphon_server.bench.sweep.figures import draw
    from antiphon_server.bench.sweep.files import write
    from antiphon_server.bench.sweep.measure import measure
    from antiphon_server.bench.sweep.plan import lengths_of
    from antiphon_server.bench.sweep.presets import preset_of
    from antiphon_server.bench.sweep.show import watcher
    from antiphon_server.bench.sweep.table import legend, tables
    from antiphon_server.bench.sweep.verdict import Limits, verdict
    from antiphon_server.stack.settings import Override, StackSettings

    console = screen()
    load = os.getloadavg()[0]
    key = os.environ.get("ANTIPHON_ENGINE_KEY") or None
    with contextlib.ExitStack() as stack:
        try:
            chosen = preset_of(preset)
            plan = _plan(
                chosen,
                lengths=lengths_of(lengths) if lengths is not None else None,
                conversations=conversations,
                turns=turns,
                new=new,
                answer=answer,
                clients=clients,
                active=active,
                repeat=repeat,
                settle=settle,
            )
            plan.check(None)
            made(out)
            if router:
                site, found = stack.enter_context(ways.given(router, key=key, api_key=api_key))
            else:
                settings = StackSettings(
                    model=_own_model(preset, chosen, model),
                    port=port,
                    key=key,
                    # Its endpoint to empty the prefix cache lets one run measure both states.
                    overrides={"prefill": Override(env={"VLLM_SERVER_DEV_MODE": "1"})},
                )
                names = [name.strip() for name in arms.split(",")]
                site, found = stack.enter_context(ways.started(settings, console, names))
            notes = _differences(site, chosen)
            for note in notes:
                console.print(f"note: {note}", markup=False, highlight=False)
            with watcher(console) as watching:
                measured = measure(site, found, plan, watching, name=preset, load=load, notes=notes)
        except (sites.SiteError, ValueError) as error:
            fail(str(error))
        except (openai.APIError, httpx.HTTPError, TimeoutError) as error:
            if (told := refusal(error)) is not None:
                fail(told)
            hint = remedy(getattr(error, "status_code", 0)) or "the engines' logs have the cause"
            fail(f"a turn failed ({type(error).__name__}: {plain(error)}); {hint}")
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
    judged = verdict(measured, Limits(at_least, auto_within))
    files = [*draw(measured, judged, out), *write(measured, judged, out, json)]
    console.print()
    console.print(tables(measured))
    for text in (
        *legend(measured),
        *measured.conditions.lines(),
        f"written: {' '.join(map(str, files))}",
        "",
    ):
        console.print(text, markup=False, highlight=False)
    for text in judged.lines():
        console.print(text, markup=False, highlight=False)
    raise typer.Exit(judged.exit_code)


def _plan(chosen: Preset, **given: object) -> Plan:
    """The preset's, with what was given instead."""
    import dataclasses

    named = {name: value for name, value in given.items() if value is not None}
    if "clients" in named and "active" not in named:
        named["active"] = max(chosen.plan.active, int(str(named["clients"])))
    return dataclasses.replace(chosen.plan, **named)  # type: ignore[arg-type]


def _own_model(name: str, chosen: Preset, model: str | None) -> str:
    """Of a stack of our own.

    Raises:
        ValueError: the preset is for a fleet that is elsewhere.
    """
    found = model or chosen.model
    if found is None:
        assert chosen.published is not None
        lines = "\n  ".join(chosen.published.lines())
        raise ValueError(
            f"--preset {name} measures a fleet that runs already: name its --router, or a --model to try the "
            f"method on this machine. The published fleet:\n  {lines}"
        )
    return found


def _differences(site: Site, chosen: Preset) -> list[str]:
    """Where the fleet is not the one whose figures the preset is to be held against."""
    if chosen.published is None:
        return []
    found = chosen.published.differences(site.engines.info(), site.engines.prefill_page())
    return [f"not the published fleet: {text}" for text in found]
