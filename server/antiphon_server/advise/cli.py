"""``antiphon advise``: whether two-way KV reuse pays for your traffic."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon_server.bench.bounds import finite
from antiphon_server.failing import fail

if TYPE_CHECKING:
    from antiphon_server.advise.fitted import Fitted

LOG = Path("log")


def advise(
    logs: Annotated[list[Path], typer.Argument(help="Files or folders of logged traffic.")],
    log_format: Annotated[
        str | None, typer.Option("--format", help="What the logs are; told by what is in them unless given.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model that is to serve, like qwen3-32b, llama-3.1-70b, glm-5, deepseek-v3."),
    ] = None,
    instance: Annotated[
        str | None, typer.Option(help="Machine of an engine: p4d, p5, p5en, p6-b200, p6-b300, cpu.")
    ] = None,
    kv_bytes_per_token: Annotated[
        int | None,
        typer.Option(min=1, max=10**9, help="Of a token's KV over all layers, where the model is not known."),
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(
            min=1e-3, max=1e6, callback=finite, help="Usable GB/s from decode to prefill, as measured."
        ),
    ] = None,
    prefill_rate: Annotated[
        float | None,
        typer.Option(min=1e-3, max=1e12, callback=finite, help="Tokens/s that one prefill engine computes."),
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(help="sweep.json of antiphon bench sweep, or the word log: the logs' own TTFT."),
    ] = None,
    decode_kv_tokens: Annotated[
        int | None, typer.Option(min=1, max=10**15, help="Tokens of KV that one decode engine holds.")
    ] = None,
    decode_engines: Annotated[
        int, typer.Option(min=1, max=10**6, help="Decode engines that share the traffic.")
    ] = 1,
    conversations: Annotated[
        float | None,
        typer.Option(
            min=1, max=1e9, callback=finite, help="Conversations that are active at once, on all of them."
        ),
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(
            min=1, max=1e9, callback=finite, help="Seconds that KV is kept; the best value unless given."
        ),
    ] = None,
    gap: Annotated[
        float | None,
        typer.Option(
            min=0, max=1e9, callback=finite, help="Seconds between turns, for those the logs do not tell."
        ),
    ] = None,
    bytes_per_token: Annotated[
        float,
        typer.Option(min=0.1, max=1e6, callback=finite, help="Of text, where no usage says how long it is."),
    ] = 4.0,
    report: Annotated[Path, typer.Option(help="The report, one HTML file.")] = Path("out/advice.html"),
    json: Annotated[Path | None, typer.Option(help="All figures; not written unless given.")] = None,
) -> None:
    """Read logged traffic and say whether to turn two-way KV reuse on, and with which settings.

    The report holds figures only: no text of prompts, no ids. Ends with 0 whatever the verdict is, with 2 if
    there is nothing to judge.
    """
    from antiphon_server.advise.advice import Asked, NoTurnsError
    from antiphon_server.advise.advice import advise as look
    from antiphon_server.advise.fitted import FitError
    from antiphon_server.advise.hardware import Given, UnknownHardwareError
    from antiphon_server.advise.page import page
    from antiphon_server.advise.summary import show
    from antiphon_server.bench.keep import KeepError, write_json
    from antiphon_server.bench.screen import screen
    from antiphon_server.traces.error import TraceError
    from antiphon_server.traces.read import read

    given = Given(model, instance, kv_bytes_per_token, bandwidth, prefill_rate, decode_kv_tokens)
    console = screen()
    try:
        _places(report, json, logs)
        asked = Asked(
            given,
            keep=keep,
            gap=gap,
            conversations=conversations,
            decodes=decode_engines,
            measured=_measured(fit) if fit is not None and fit != LOG else None,
            fit_log=fit == LOG,
        )
        with console.status("reading logs") if console.is_terminal else contextlib.nullcontext() as status:
            trace = read(logs, format=log_format, bytes_per_token=bytes_per_token)
            if status is not None:
                status.update(f"looking at {sum(len(one.calls) for one in trace.conversations):,} calls")
            found = look(trace, asked)
    except (TraceError, NoTurnsError, UnknownHardwareError, FitError, KeepError, OSError) as error:
        fail(str(error))
    show(found, console)
    try:
        report.write_text(page(found), encoding="utf-8")
        if json is not None:
            write_json(found, json)
    except OSError as error:
        fail(f"the summary above is all there is: {error}: name another --report or --json")
    console.print(f"report: {report}" + (f"   figures: {json}" if json is not None else ""), highlight=False)


def _places(report: Path, json: Path | None, logs: list[Path]) -> None:
    """See that all that is to be written can be.

    Raises:
        KeepError: it cannot.
    """
    from antiphon_server.bench.keep import KeepError, place

    named = {"--report": report} | ({"--json": json} if json is not None else {})
    for option, path in named.items():
        if path.resolve() in {log.resolve() for log in logs}:
            raise KeepError(f"{option} {path}: this is one of the logs: name another file")
        place(option, path)
    if json is not None and json.resolve() == report.resolve():
        raise KeepError(f"--report {report} --json {json}: both are one file: name two")


def _measured(fit: Path) -> Fitted:
    from antiphon_server.advise.measured import from_sweep  # takes a second to load

    return from_sweep(fit)
