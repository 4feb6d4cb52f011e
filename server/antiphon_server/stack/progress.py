"""What a person sees while the stack starts: a live table on a terminal, lines anywhere else."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from antiphon_server.stack.command import ProcessSpec
from antiphon_server.stack.stack import Progress

REPEAT_S = 15.0
"""A process whose stage does not change is told again after so long."""


class LineProgress(Progress):
    """A line whenever something changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[str, tuple[str, float]] = {}

    def note(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)

    def waiting(self, spec: ProcessSpec, stage: str, elapsed: float) -> None:
        told, when = self._told.get(spec.name, ("", 0.0))
        if stage != told or elapsed - when >= REPEAT_S:
            self._told[spec.name] = (stage, elapsed)
            self.note(f"{elapsed:5.0f} s  {spec.name:<10}  {stage}")

    def ready(self, spec: ProcessSpec, elapsed: float) -> None:
        self.note(f"{elapsed:5.0f} s  {spec.name:<10}  ready at {spec.url}")


class LiveProgress(Progress):
    """A row per process, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._rows: dict[str, tuple[str, float, bool]] = {}
        self._live = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._table)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def note(self, line: str) -> None:
        self._live.console.print(line, markup=False, highlight=False)

    def waiting(self, spec: ProcessSpec, stage: str, elapsed: float) -> None:
        self._rows[spec.name] = (stage, elapsed, False)

    def ready(self, spec: ProcessSpec, elapsed: float) -> None:
        self._rows[spec.name] = ("ready", elapsed, True)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, (stage, elapsed, ready) in self._rows.items():
            mark = "[green]●[/]" if ready else "[yellow]○[/]"
            table.add_row(mark, name, f"{elapsed:.0f} s", stage)
        return table
