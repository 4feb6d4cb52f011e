"""``antiphon advise``: whether two-way KV reuse pays for your traffic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
        int | None, typer.Option(min=1, help="Of a token's KV over all layers, where the model is not known.")
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(min=1e-3, help="Usable GB/s from decode to prefill, as measured.")
    ] = None,
    prefill_rate: Annotated[
        float | None, typer.Option(min=1e-3, help="Tokens/s that one prefill engine computes.")
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(help="sweep.json of antiphon bench sweep, or the word log: the logs' own TTFT."),
    ] = None,
    decode_kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of KV that one decode engine holds.")
    ] = None,
    decode_engines: Annotated[int, typer.Option(min=1, help="Decode engines that share the traffic.")] = 1,
    conversations: Annotated[
        float | None, typer.Option(min=1, help="Conversations that are active at once, on all of them.")
    ] = None,
    keep: Annotated[
        float | None, typer.Option(min=1, help="Seconds that KV is kept; the best value unless given.")
    ] = None,
    gap: Annotated[
        float | None, typer.Option(min=0, help="Seconds between turns, for those the logs do not tell.")
    ] = None,
    bytes_per_token: Annotated[
        float, typer.Option(min=0.1, help="Of text, where no usage says how long it is.")
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
    from antiphon_server.bench.keep import write_json
    from antiphon_server.bench.screen import screen
    from antiphon_server.traces.error import TraceError
    from antiphon_server.traces.read import read

    given = Given(model, instance, kv_bytes_per_token, bandwidth, prefill_rate, decode_kv_tokens)
    try:
        asked = Asked(
            given,
            keep=keep,
            gap=gap,
            conversations=conversations,
            decodes=decode_engines,
            measured=_measured(fit) if fit is not None and fit != LOG else None,
            fit_log=fit == LOG,
        )
        found = look(read(logs, format=log_format, bytes_per_token=bytes_per_token), asked)
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(page(found), encoding="utf-8")
        if json is not None:
            write_json(found, json)
    except (TraceError, NoTurnsError, UnknownHardwareError, FitError, OSError) as error:
        fail(str(error))
    console = screen()
    show(found, console)
    console.print(f"report: {report}" + (f"   figures: {json}" if json is not None else ""), highlight=False)


def _measured(fit: Path) -> Fitted:
    from antiphon_server.advise.measured import from_sweep  # takes a second to load

    return from_sweep(fit)
