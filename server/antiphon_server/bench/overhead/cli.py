"""``antiphon bench router``: what a router costs, beside another one and the least proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer


def router(
    sizes: Annotated[str, typer.Option(help="KB of a request's body, comma-separated.")] = "2,64,480",
    connections: Annotated[str, typer.Option(help="At once, comma-separated.")] = "1,16,256",
    rounds: Annotated[int, typer.Option(min=1, help="Bursts of each contender in each cell.")] = 3,
    seconds: Annotated[float, typer.Option(min=0, help="Length of a burst.")] = 1.0,
    streams: Annotated[str, typer.Option(help="Open at once, comma-separated; 0: none.")] = "250,1000",
    only: Annotated[str, typer.Option(help="Contenders whose names have one of these words.")] = "",
    peer: Annotated[Path | None, typer.Option(help="Folder of the peer's executables (vllm-router).")] = None,
) -> None:
    """Measure the data plane: routers over engines that answer at once, in turns, in one run."""
    import tempfile

    from antiphon_server.bench.overhead import contenders as field
    from antiphon_server.bench.overhead.connection import ReplyError
    from antiphon_server.bench.overhead.crowds import CrowdPlan
    from antiphon_server.bench.overhead.measure import Field, LegsError, Plan
    from antiphon_server.bench.overhead.processes import StartError, allow_many_files, ports, running
    from antiphon_server.bench.overhead.table import crowd_table, tables
    from antiphon_server.bench.screen import screen
    from antiphon_server.stack.ports import PortError

    console = screen()
    words = [word for word in only.split(",") if word]
    chosen = [
        one
        for one in field.ALL
        if (one.kind is not field.Kind.PEER or peer is not None)
        and (not words or one is field.DIRECT or any(word in one.name for word in words))
    ]
    names = list(dict.fromkeys(one.process for one in chosen if one.process is not None))
    allow_many_files()
    plan = Plan(
        tuple(round(1000 * size) for size in _numbers("--sizes", sizes)),
        tuple(int(number) for number in _numbers("--connections", connections)),
        rounds,
        seconds,
    )
    with tempfile.TemporaryDirectory() as logs, running() as processes:
        try:
            own = ports(names)
            processes.start([field.engines(own, Path(logs))])
            processes.start([field.process(name, own, Path(logs), peer) for name in names])
            with Field(chosen, own, processes, lambda text: console.print(text, highlight=False)) as field_:
                rows = field_.cells(plan)
                crowd_rows = field_.crowds(
                    CrowdPlan(tuple(int(n) for n in _numbers("--streams", streams))), 1
                )
        except (StartError, PortError, ReplyError, LegsError) as error:
            _fail(str(error))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
    console.print()
    console.print(tables(rows))
    console.print(crowd_table(crowd_rows))


def _numbers(flag: str, text: str) -> list[float]:
    try:
        numbers = sorted({float(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] <= 0:
        _fail(f"{flag} {text!r} is not a list of numbers above 0: write it like 2,64")
    return numbers


def _fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)
