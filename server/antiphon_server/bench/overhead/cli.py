"""``antiphon bench router``: what a router costs, beside another one and the least proxy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon_server.bench.bounds import finite
from antiphon_server.failing import fail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from antiphon_server.bench.overhead.contenders import Contender
    from antiphon_server.bench.overhead.report import Report


def router(
    sizes: Annotated[str, typer.Option(help="KB of a request's body, comma-separated.")] = "2,64,480",
    connections: Annotated[str, typer.Option(help="At once, comma-separated.")] = "1,16,256",
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Bursts of each contender in each cell.")] = 3,
    seconds: Annotated[float, typer.Option(min=0, max=600, callback=finite, help="Length of a burst.")] = 0.5,
    streams: Annotated[str, typer.Option(help="Open at once, comma-separated; empty: none.")] = "250,1000",
    rate: Annotated[
        float, typer.Option(min=0.1, max=10_000, callback=finite, help="Chunks a second of each stream.")
    ] = 20.0,
    stream_seconds: Annotated[
        float, typer.Option(min=0.2, max=3600, callback=finite, help="Length of the streams.")
    ] = 5.0,
    conversations: Annotated[
        int, typer.Option(min=0, max=10_000_000, help="Idle ones, whose memory is measured; 0: none.")
    ] = 25_000,
    only: Annotated[
        str, typer.Option(help="Contenders by name, separated by semicolons; direct is always there.")
    ] = "",
    libraries: Annotated[
        bool, typer.Option("--libraries", help="Servers, clients and JSON libraries too.", show_default=False)
    ] = False,
    peers: Annotated[
        Path | None,
        typer.Option(
            envvar="ANTIPHON_PEERS",
            help="Environment with vllm-router and other libraries; default: ours, with -peers behind it.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of tables and figures.")] = Path("out/router"),
    check: Annotated[
        bool, typer.Option("--check", help="Fail unless all criteria hold.", show_default=False)
    ] = False,
) -> None:
    """Measure the data plane: routers over engines that answer at once, in turns, in one run.

    Beside it the least proxies and, from an environment of its own, another router. Ends with 0; with 1 if
    --check finds a criterion that does not hold or was not measured; with 2 if it could not be run.
    """
    import os

    from antiphon_server.bench.keep import KeepError, made
    from antiphon_server.bench.overhead import table
    from antiphon_server.bench.overhead.criteria import holds
    from antiphon_server.bench.overhead.files import write
    from antiphon_server.bench.screen import screen

    try:
        made(out)
    except KeepError as error:
        fail(str(error))
    console = screen()
    load = os.getloadavg()[0]
    peers = _environment(peers)
    if peers is None:
        console.print(HINT, markup=False, highlight=False)
    report = _run(
        _contenders(only, libraries=libraries, peers=peers),
        sizes=_numbers("--sizes", sizes),
        connections=_whole("--connections", connections),
        rounds=rounds,
        seconds=seconds,
        streams=_whole("--streams", streams) if streams else [],
        rate=rate,
        stream_seconds=stream_seconds,
        conversations=conversations,
        peers=peers,
        load=load,
        tell=lambda text: console.print(text, markup=False, highlight=False),
    )
    files = write(report, out)
    console.print()
    console.print(table.tables(report.rows))
    if report.crowds:
        console.print(table.crowd_table(report.crowds))
    if report.memory is not None:
        console.print(table.memory_line(report.memory), highlight=False)
    for text in (*report.captions(), f"written: {' '.join(map(str, files))}", ""):
        console.print(text, markup=False, highlight=False)
    for verdict in report.verdicts:
        console.print(table.verdict_line(verdict), markup=False, highlight=False)
    raise typer.Exit(0 if not check or holds(report.verdicts) else 1)


MOST = 1_000_000
"""Of anything that is listed: KB of a body, connections, streams."""
HINT = (
    "no peer to compare with: install requirements/peers.txt into a virtual environment and name its folder "
    "by --peers"
)


def _environment(given: Path | None) -> Path | None:
    """The peers' environment, if there is one."""
    import sys

    found = given if given is not None else Path(f"{sys.prefix}-peers")
    if (found / "bin" / "vllm-router").exists():
        return found
    if given is not None:
        fail(f"--peers {given}: no bin/vllm-router there: install requirements/peers.txt into it")
    return None


def _contenders(only: str, *, libraries: bool, peers: Path | None) -> list[Contender]:
    from antiphon_server.bench.overhead import contenders as field

    wanted = {name.strip() for name in only.split(";") if name.strip()}
    there = [*field.ALL, *(field.LIBRARIES if libraries else ())]
    unknown = wanted - {one.name for one in there}
    if unknown:
        names = ", ".join(one.name for one in there)
        fail(f"--only {', '.join(sorted(unknown))}: no such contender; there are {names}")
    if peers is None:
        there = [one for one in there if not field.needs_peers(one)]
    return [one for one in there if not wanted or one.kind is field.Kind.DIRECT or one.name in wanted]


def _run(
    contenders: Sequence[Contender],
    *,
    sizes: Sequence[float],
    connections: Sequence[int],
    rounds: int,
    seconds: float,
    streams: Sequence[int],
    rate: float,
    stream_seconds: float,
    conversations: int,
    peers: Path | None,
    load: float,
    tell: Callable[[str], None],
) -> Report:
    import tempfile

    import httpx

    from antiphon_server.bench.overhead import contenders as field
    from antiphon_server.bench.overhead.connection import ReplyError
    from antiphon_server.bench.overhead.crowds import CrowdPlan
    from antiphon_server.bench.overhead.measure import Field, LegsError, Plan
    from antiphon_server.bench.overhead.memory import grown
    from antiphon_server.bench.overhead.processes import StartError, allow_many_files, ports, running
    from antiphon_server.bench.overhead.report import Memory, machine, report
    from antiphon_server.stack.ports import PortError

    plan = Plan(tuple(round(1000 * size) for size in sizes), tuple(connections), rounds, seconds)
    crowd_plan = CrowdPlan(tuple(streams), rate, stream_seconds)
    _enough(allow_many_files(), max((*connections, *streams)))
    names = list(dict.fromkeys(one.process for one in contenders if one.process is not None))
    with tempfile.TemporaryDirectory() as logs, running() as processes:
        try:
            own = ports(names)
            processes.start([field.engines(own, Path(logs))])
            processes.start([field.process(name, own, Path(logs), peers) for name in names])
            with Field(contenders, own, processes, tell) as measuring:
                since = processes.usage()
                rows = measuring.cells(plan)
                crowds = measuring.crowds(crowd_plan)
                others = processes.usage().others(since)
        except (StartError, PortError, ReplyError, LegsError, httpx.HTTPError) as error:
            fail(processes.ended() or str(error))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
    memory = None
    if conversations:
        tell(f"memory of {conversations} idle conversations")
        memory = Memory(conversations, grown(conversations, conversations)[conversations])
    return report(machine(load, peers), plan, crowd_plan, rows, crowds, memory, others)


def _enough(files: int, connections: int) -> None:
    """A router has two connections for each of its clients'."""
    if files < 2 * connections + 200:
        fail(
            f"{connections} connections need {2 * connections + 200} open files in a process, and it may "
            f"have {files}: raise the hard limit (ulimit -Hn), or ask for fewer"
        )


def _numbers(flag: str, text: str) -> list[float]:
    try:
        numbers = sorted({float(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number <= MOST for number in numbers):
        fail(f"{flag} {text!r} is not a list of numbers above 0, up to {MOST:,}: write it like 2,64")
    return numbers


def _whole(flag: str, text: str) -> list[int]:
    numbers = _numbers(flag, text)
    if any(number != int(number) for number in numbers):
        fail(f"{flag} {text!r}: whole numbers are wanted")
    return [int(number) for number in numbers]
