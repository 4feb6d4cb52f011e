"""``antiphon bench simulate``: policies on a fleet that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon_server.bench.bounds import finite, share
from antiphon_server.failing import fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.progress import Progress

    from antiphon_server.bench.simulate.rates import RateModel
    from antiphon_server.bench.simulate.workload import Lane

ANNOUNCEMENT = "announcement"
MOST_TURNS = 1_000_000
"""Of a run: some 20 minutes of one core for each policy, and 200 MB."""


def simulate(
    context: typer.Context,
    prefill: Annotated[int, typer.Option(min=1, help="Prefill engines, at most 64.")] = 4,
    decode: Annotated[int, typer.Option(min=1, help="Decode engines, at most 64.")] = 4,
    conversations: Annotated[
        int, typer.Option(min=1, max=100_000, help="Modelled agents, begun within --window.")
    ] = 200,
    turns: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Of each conversation; default: as agents' are spread."),
    ] = None,
    window: Annotated[
        float | None,
        typer.Option(
            min=0, max=86_400, callback=finite, help="Seconds within which all conversations begin."
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="Comma-separated: cold, proxy, reuse, append, auto, off.")
    ] = "cold,proxy,append,auto",
    model: Annotated[str, typer.Option(help="Rates: qwen3-32b-p5en or glm-5-fp8-p5en.")] = "qwen3-32b-p5en",
    fit: Annotated[
        str | None,
        typer.Option(help="Rates fitted to this sweep.json, or anew to the 'announcement'."),
    ] = None,
    trace: Annotated[
        list[Path] | None, typer.Option(help="Conversations of these logs instead of modelled agents.")
    ] = None,
    copies: Annotated[int, typer.Option(min=1, max=10_000, help="Of each of --trace's conversations.")] = 1,
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures.")] = 1,
    cache: Annotated[bool, typer.Option(help="Prefill has a prefix cache of its own.")] = True,
    kv: Annotated[
        int, typer.Option(min=1, max=10**12, help="Tokens of KV that each engine holds.")
    ] = 2_000_000,
    budget: Annotated[
        float | None,
        typer.Option(callback=share, help="Share of decode's KV that resting conversations may hold."),
    ] = None,
    curve: Annotated[
        bool, typer.Option("--curve", help="Instead: the announcement's method at all its lengths.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of figures and tables.")] = Path("out/simulate"),
) -> None:
    """Simulate policies on a fleet: the router's own decisions, on engines of which only the rates are known.

    A simulation, not a measurement. Ends with 0, with 2 if it could not be run.
    """
    import functools
    import resource
    import time

    from antiphon_server.bench.keep import made, write_json
    from antiphon_server.bench.screen import screen
    from antiphon_server.bench.simulate import chart
    from antiphon_server.bench.simulate.fleet import Fleet
    from antiphon_server.bench.simulate.policy import policies
    from antiphon_server.bench.simulate.report import LABEL, Report
    from antiphon_server.bench.simulate.run import simulate as run
    from antiphon_server.bench.simulate.table import markdown, tables, write_csv

    console = screen()
    try:
        _used({name for name in context.params if _is_given(context, name)}, fit)
        made(out)
        if curve:
            _curve(console, fit, out)
            return
        fleet = Fleet(prefill, decode, kv, kv, prefill_cache=cache)
        chosen = policies([name.strip() for name in policy.split(",")])
        lanes, traffic, notes = _traffic(conversations, turns, window, trace, copies, seed)
        rates = _rates(model, fit)
        settings: dict[str, object] = {} if budget is None else {"keep_share": budget}
        results, spent = [], []
        with _bar(console) as bar:
            total = sum(len(one.turns) for lane in lanes for one in lane.conversations)
            for each in chosen:
                task = bar.add_task(f"simulating {each.name}: {each.title}", total=total)
                began = time.process_time()
                served = functools.partial(bar.advance, task)
                results.append(run(lanes, rates, fleet, each, seed=seed, settings=settings, served=served))
                spent.append(f"{each.name} {time.process_time() - began:.1f} s")
    except ValueError as error:  # all of ours that name what to do, and pydantic's
        fail(_plain(error))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    report = Report(LABEL, rates, fleet, traffic, notes, seed, settings, tuple(results))
    console.print(tables(report))
    _show_rates(console, rates)
    write_json(report.without_samples(), out / "simulate.json")
    write_csv(report, out / "simulate.csv")
    (out / "simulate.md").write_text(markdown(report))
    chart.compared(report, out / "simulate.png")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    console.print(f"CPU time: {', '.join(spent)}; peak memory {memory:.0f} MB", highlight=False)
    console.print(f"written: {out}/simulate.json, .csv, .md, .png", highlight=False)


_MODELLED = ("conversations", "turns")
_FLEET = (
    "prefill",
    "decode",
    "policy",
    "model",
    "cache",
    "kv",
    "budget",
    "seed",
    "window",
    "trace",
    "copies",
)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _used(given: set[str], fit: str | None) -> None:
    """Refuse what would be left out of account.

    Raises:
        ValueError: options that do not go together.
    """
    for one, others, why in (
        ("curve", (*_MODELLED, *_FLEET), "it is the announcement's method, on its fleet"),
        ("trace", _MODELLED, "the conversations are the trace's; --copies makes more of them"),
    ):
        if one in given and (extra := [f"--{name}" for name in others if name in given]):
            raise ValueError(f"--{one} with {', '.join(extra)}: {why}: leave {', '.join(extra)} out")
    if "copies" in given and "trace" not in given:
        raise ValueError(
            "--copies without --trace: copies are of a trace's conversations: leave it out, or "
            "raise --conversations"
        )
    if "model" in given and fit not in (None, ANNOUNCEMENT):
        raise ValueError(f"--model with --fit {fit}: rates are the sweep's: leave one of them out")


def _bar(console: Console) -> Progress:
    """Turns that are done, on a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _rates(model: str, fit: str | None) -> RateModel:
    from antiphon_server.bench.simulate import fit_published, fit_sweep
    from antiphon_server.bench.simulate.announcement import PUBLISHED
    from antiphon_server.bench.simulate.presets import preset
    from antiphon_server.bench.simulate.published import with_errors

    if fit is None:
        return with_errors(preset(model), PUBLISHED[model])
    if fit != ANNOUNCEMENT:
        return fit_sweep.fit(Path(fit))
    preset(model)
    return fit_published.fit(model, PUBLISHED[model])


def _traffic(
    conversations: int,
    turns: int | None,
    window: float | None,
    trace: list[Path] | None,
    copies: int,
    seed: int,
) -> tuple[Sequence[Lane], str, tuple[str, ...]]:
    """Conversations, what they are in words, and notes on them."""
    from dataclasses import replace

    from antiphon_server.bench.simulate.traced import from_trace
    from antiphon_server.bench.simulate.workload import CODING_AGENT
    from antiphon_server.traces.read import read

    if trace:
        told = read(trace)
        if copies * (calls := sum(len(one.calls) for one in told.conversations)) > MOST_TURNS:
            raise ValueError(
                f"--copies {copies} of {calls} calls are more than the {MOST_TURNS} turns that a run may "
                "have: lower it"
            )
        found = from_trace(told, window=window, copies=copies, seed=seed)
        named = f"{', '.join(map(str, trace))} ({told.format})"
        return found.lanes, f"{len(found.lanes)} conversations of {named}", found.notes
    if turns is not None and conversations * turns > MOST_TURNS:
        raise ValueError(
            f"--conversations {conversations} of --turns {turns} are more than the {MOST_TURNS} turns that a "
            "run may have: lower one of them"
        )
    work = replace(
        CODING_AGENT,
        turns=CODING_AGENT.turns if turns is None else turns,
        window=CODING_AGENT.window if window is None else window,
    )
    return work.lanes(conversations, seed), f"{conversations} conversations of {work.name}", ()


def _curve(console: Console, fit: str | None, out: Path) -> None:
    from antiphon_server.bench.simulate import chart
    from antiphon_server.bench.simulate.announcement import PUBLISHED
    from antiphon_server.bench.simulate.presets import PRESETS
    from antiphon_server.bench.simulate.published import point
    from antiphon_server.bench.simulate.report import LABEL

    if fit not in (None, ANNOUNCEMENT):
        raise ValueError(f"--curve with --fit {fit}: its figures are the announcement's, leave --fit out")
    fits = []
    console.print(LABEL, style="bold yellow")
    for name in PRESETS:
        rates, published = _rates(name, fit), PUBLISHED[name]
        points = [point(rates, length) for length in published.lengths]
        fits.append((published, rates, points))
        console.print(f"{published.title}: TTFT, reuse off and on, seconds")
        for found in points:
            off, on = found.off.ttft["all"], found.on.ttft["all"]
            assert off is not None
            assert on is not None
            gain = off.mean / on.mean
            console.print(f"  {found.prefix:6d}  {off.mean:.3f}  {on.mean:.3f}  {gain:.2f}x", highlight=False)
        _show_rates(console, rates)
    chart.curve(fits, out / "curve.png")
    console.print(f"written: {out}/curve.png", highlight=False)


def _show_rates(console: Console, rates: RateModel) -> None:
    from antiphon_server.bench.simulate.table import errors, parameters

    console.print(f"rates: {rates.name}", style="bold")
    console.print("  " + " · ".join(f"{name} {value}" for name, value in parameters(rates)), highlight=False)
    for line in rates.assumed:
        console.print(f"  assumed: {line}", highlight=False)
    for name, given, found, error in errors(rates):
        console.print(f"  {name:40} {given:>9} {found:>9} {error:>8}", highlight=False)


def _plain(error: ValueError) -> str:
    """Without pydantic's frame around what is wrong."""
    found = getattr(error, "errors", None)
    if callable(found):
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in found())
    return str(error)
