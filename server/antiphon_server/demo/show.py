"""What a person sees of a demo: a live table on a terminal, lines anywhere else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from antiphon_server.bench.site import Site
from antiphon_server.demo.record import Measured, Record, Row
from antiphon_server.demo.runs import Watcher
from antiphon_server.demo.table import line, summary, table

OPENING = """\
An agent on call looks into an incident: {turns} turns, {calls} real tool calls, one report.
The same conversation runs twice on real engines ({model}, one prefill, one decode, our router):
  without reuse  prefill computes every prompt from its first token
  with reuse     prefill pulls the KV of the last turn back from decode and computes what is new
Prefill's own prefix cache is off: it stands for one that evicted the prompt, or for another node.
Each run has a cache salt of its own; which tool comes when is scripted, its arguments are the model's.
"""


class Lines(Watcher):
    """A line per turn."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, text: str) -> None:
        if text.startswith("warming"):
            self._print(text)

    def turn(self, rows: Sequence[Row], index: int, run: str, measured: Measured) -> None:
        self._print(line(rows[index], run, measured))

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


class Living(Watcher):
    """The table, redrawn as it fills."""

    def __init__(self, console: Console) -> None:
        self._rows: Sequence[Row] = ()
        self._spinner = Spinner("dots", "")
        self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._draw)

    def __enter__(self) -> Living:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        self._spinner.update(text=text)

    def turn(self, rows: Sequence[Row], index: int, run: str, measured: Measured) -> None:
        self._rows = list(rows)

    def _draw(self) -> Table:
        page = Table.grid()
        page.add_row(table(self._rows))
        page.add_row(self._spinner)
        for row in self._rows:
            if row.shown:
                page.add_row(Text.assemble((f"{row.turn} ", "dim"), row.shown))
        return page


def opening(console: Console, model: str, turns: int) -> None:
    """What is going to happen."""
    console.print(OPENING.format(turns=turns, calls=turns - 1, model=model), markup=False, highlight=False)


@contextlib.contextmanager
def watcher(console: Console) -> Iterator[Watcher]:
    """The one that suits the console."""
    if not console.is_terminal:
        yield Lines(console)
        return
    with Living(console) as living:
        yield living


def closing(console: Console, record: Record) -> None:
    """The whole table and what it comes to."""
    console.print()
    console.print(table(record.rows))
    console.print()
    good = record.verdict.exit_code == 0
    for text in summary(record):
        console.print(text, markup=False, highlight=False, style=None if good else "red")
    for text in record.conditions.lines():
        console.print(text, markup=False, highlight=False, style="dim")
    if record.conditions.load > record.conditions.cores / 2:
        load = f"load {record.conditions.load} on {record.conditions.cores} cores"
        console.print(
            f"The machine was busy before the demo ({load}): its times are too long.", style="yellow"
        )


def wait(console: Console, site: Site) -> None:
    """Until Ctrl-C."""
    console.print(f"The stack stays up: {site.api} (model {site.model}). Ctrl-C stops it.", markup=False)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
