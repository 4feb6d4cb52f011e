"""``antiphon replay``: recorded conversations against a router, or against several over the same engines."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from antiphon_server.failing import fail

DEFAULT_ARMS = "off,reuse,auto"


def replay(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Files or folders of traffic.")],
    format: Annotated[  # noqa: A002
        str | None, typer.Option(help="Of the traces; told by what is in them unless given.")
    ] = None,
    router: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]URL",
            help="Of a router or another OpenAI-compatible server that runs already; several are compared.",
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Ask that router without conversation ids (off) and with (on).")
    ] = False,
    arms: Annotated[
        str, typer.Option(help="Of a stack of our own: off, reuse, append, auto, comma-separated.")
    ] = DEFAULT_ARMS,
    model: Annotated[
        str | None,
        typer.Option(help="To ask for; of a stack of our own: tiny (default), smollm2, a folder, a hub id."),
    ] = None,
    prefill_cache: Annotated[
        bool, typer.Option(help="Prefill of a stack of our own keeps a prefix cache.")
    ] = True,
    scale: Annotated[float, typer.Option(help="Tokens of the trace that one token stands for.")] = 1.0,
    longest_prompt: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a prompt and its answer; a conversation ends before. "
                     "Default: the model's."),
    ] = None,
    longest_answer: Annotated[int | None, typer.Option(min=1, help="Tokens of an answer.")] = None,
    common: Annotated[
        bool,
        typer.Option("--common", help="One system prompt for all, where the trace tells but its length."),
    ] = False,
    time: Annotated[
        str, typer.Option(help="Gaps between turns: real, none, or a number to divide them by.")
    ] = "real",
    longest_gap: Annotated[
        float | None, typer.Option(min=0, help="Recorded seconds that a gap counts for at most.")
    ] = None,
    gap: Annotated[float, typer.Option(min=0, help="Recorded seconds of gaps that the trace lacks.")] = 0.0,
    clients: Annotated[int, typer.Option(min=1, max=1024, help="Conversations at once.")] = 1,
    start: Annotated[float, typer.Option(min=0, help="Seconds over which the clients begin.")] = 0.0,
    conversations: Annotated[int | None, typer.Option(min=1, help="How many; default all.")] = None,
    turns: Annotated[int | None, typer.Option(min=1, help="Of each conversation, at most.")] = None,
    copies: Annotated[
        int, typer.Option(min=1, help="Of each conversation; they share but the system prompt.")
    ] = 1,
    least_turns: Annotated[int, typer.Option(min=1, help="Leave shorter conversations out.")] = 1,
    sample: Annotated[
        int | None, typer.Option(metavar="SEED", help="Draw the conversations at random.")
    ] = None,
    free_answers: Annotated[
        bool, typer.Option("--free-answers", help="Answers may end before their recorded length.")
    ] = False,
    tools: Annotated[
        bool, typer.Option(help="Send the trace's tools, where it has them and --scale is 1.")
    ] = True,
    tool_role: Annotated[
        bool, typer.Option("--tool-role", help="Send a tool's result as such even if the live answer did not "
                           "call it; else it is the user's message.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds of one turn.")] = 600.0,
    warm_up: Annotated[bool, typer.Option(help="Two short turns of each arm before.")] = True,
    at_least: Annotated[
        list[str] | None,
        typer.Option(metavar="SLOW/FAST=X", help="Fail unless median TTFT of turns 2+ of SLOW over that of "
                     "FAST reaches X, as in reuse/auto=1.3."),
    ] = None,
    port: Annotated[int, typer.Option(help="First port of a stack of our own.")] = 8000,
    api_key: Annotated[
        str, typer.Option(envvar="OPENAI_API_KEY", help="Clients' key.", show_default=False)
    ] = "none",
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("out/replay"),
) -> None:  # fmt: skip
    """Play recorded conversations again: each client sends a turn when the last one's answer has come.

    Reads OpenAI message logs, tau-bench, SWE-agent trajectories, traces of block ids, Mooncake, OTel spans
    and vLLM multi-turn files. The model's own answers stand where the recorded ones stood. Several arms are
    interleaved, conversation by conversation, and their answers compared.

    Ends with 0, with 1 if answers differ, a turn failed, an arm that was to reuse never did, or --at-least is
    missed, with 2 if it could not run.
    """
    import os

    import httpx

    from antiphon_server.bench.keep import made
    from antiphon_server.bench.refusal import plain, refusal, remedy
    from antiphon_server.bench.replay import target as targets
    from antiphon_server.bench.replay.files import write
    from antiphon_server.bench.replay.pace import pace
    from antiphon_server.bench.replay.play import GoneError, Manner
    from antiphon_server.bench.replay.record import exit_code
    from antiphon_server.bench.replay.run import run, wanted
    from antiphon_server.bench.replay.script import Size
    from antiphon_server.bench.replay.scripts import Choice
    from antiphon_server.bench.replay.table import outcomes, summary, tables
    from antiphon_server.bench.screen import screen
    from antiphon_server.bench.site import SiteError
    from antiphon_server.stack.settings import StackSettings
    from antiphon_server.traces.read import read

    console = screen()
    load = os.getloadavg()[0]
    key = os.environ.get("ANTIPHON_ENGINE_KEY") or None
    names = tuple(dict.fromkeys(name.strip() for name in arms.split(",") if name.strip()))
    with contextlib.ExitStack() as stack:
        try:
            if not scale > 0:
                raise ValueError(f"--scale {scale:g}: it must be above 0")
            rhythm = pace(time, longest=longest_gap, unknown=gap)
            least = wanted(at_least or ())
            made(out)
            trace = read(traces, format=format)
            if router:
                target = stack.enter_context(
                    targets.given(router, compare=compare, key=key, model=model, load=load, api_key=api_key)
                )
            else:
                settings = StackSettings(
                    model=model or "tiny", port=port, key=key, prefill_cache=prefill_cache
                )
                target = stack.enter_context(targets.own_stack(settings, console, names, load=load))
            limits = [limit for limit in (longest_prompt, target.longest) if limit is not None]
            size = Size(scale, longest_answer, min(limits, default=None), common)
            manner = Manner(
                target.model,
                target.ruler,
                rhythm,
                clients,
                start,
                timeout,
                not free_answers,
                tool_role,
                api_key,
            )
            choice = Choice(conversations, turns, least_turns, sample, copies)
            record = run(
                target, trace, size, manner, choice,
                sources=tuple(map(str, traces)), tools=tools, warm=warm_up, least=least, console=console,
            )  # fmt: skip
        except GoneError as error:
            hint = remedy(getattr(error.__cause__, "status_code", 0))
            fail(f"{error}: {hint}" if hint else str(error))
        except (SiteError, ValueError) as error:
            fail(str(error))
        except httpx.HTTPError as error:
            told = refusal(error) or f"{type(error).__name__}: {plain(error)}"
            fail(f"an engine does not tell its counters ({told})")
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
    write(record, out)
    console.print()
    console.print(tables(record))
    console.print()
    for text in (*outcomes(record), *summary(record)):
        console.print(text, markup=False, highlight=False)
    console.print(f"{out}: replay.json, turns.csv, replay.md, replay.png", highlight=False)
    raise typer.Exit(exit_code(record))
