"""A table that stays legible on a narrow screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_WRAPPED = 24
"""Cells that a column of text has at least."""


@dataclass
class Grid:
    """Where the screen is too narrow for all columns it shows some, and the others below, each time with the
    first ``keys`` columns; no figure is cut.

    ``gap``: cells between columns. ``left``: names of columns of text, of which those ``wrapped`` may take
    several lines; the first column is text.
    """

    names: Sequence[str]
    keys: int = 1
    gap: int = 2
    left: frozenset[str] = frozenset()
    wrapped: frozenset[str] = frozenset()
    _rows: list[tuple[tuple[str, ...], str | None]] = field(default_factory=list)

    def add(self, *cells: str, style: str | None = None) -> None:
        """A row; without cells an empty one."""
        self._rows.append((cells or ("",) * len(self.names), style))

    def parts(self, width: int) -> Iterator[list[int]]:
        """Which columns stand beside each other on a screen of ``width`` cells."""
        needs = [self._need(index) + self.gap for index in range(len(self.names))]
        keys = list(range(self.keys))
        part = list(keys)
        for index in range(self.keys, len(self.names)):
            # Nothing follows the last column.
            if len(part) > len(keys) and sum(needs[i] for i in (*part, index)) - self.gap > width:
                yield part
                part = list(keys)
            part.append(index)
        yield part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, part in enumerate(self.parts(options.max_width)):
            if number:
                yield Text()
            yield self._table(part)

    def _need(self, index: int) -> int:
        name = self.names[index]
        found = max((cell_len(cells[index]) for cells, _ in self._rows), default=0)
        return max(cell_len(name), min(found, _WRAPPED) if name in self.wrapped else found)

    def _table(self, part: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, self.gap, 0, 0), header_style="bold")
        for index in part:
            name = self.names[index]
            table.add_column(
                Text(name),
                justify="left" if index == 0 or name in self.left else "right",
                no_wrap=name not in self.wrapped,
            )
        for cells, style in self._rows:
            table.add_row(*(Text(cells[index]) for index in part), style=style)
        return table
