"""What a person sees while a sweep runs: a bar on a terminal, lines anywhere else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from antiphon_server.bench.sweep.measure import Watcher
from antiphon_server.bench.sweep.record import Turn


def line(turn: Turn) -> str:
    """One turn, in a line."""
    place, timed, outcome = turn.place, turn.timed, turn.timed.outcome
    where = f"{place.length:>6} tokens, cache {place.cache:<5} {turn.arm:<10}"
    number = f"#{place.repeat}.{place.conversation} turn {place.turn:<2}"
    return (
        f"{where} {number} TTFT {timed.ttft * 1e3:7.0f} ms  {outcome.path} ({outcome.reason}), "
        f"{outcome.matched} of {timed.prompt_tokens} matched"
    )


@contextlib.contextmanager
def watcher(console: Console) -> Iterator[Watcher]:
    """For the time of the sweep."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (
        TextColumn("{task.description:<64}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(console, progress)


class _Lines(Watcher):
    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def begin(self, turns: int) -> None:
        self.note(f"{turns} turns")

    def turn(self, turn: Turn) -> None:
        self.note(line(turn))


class _Bar(Watcher):
    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        self._task = progress.add_task("warming up", total=None)

    def note(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def begin(self, turns: int) -> None:
        self._progress.update(self._task, total=turns)

    def turn(self, turn: Turn) -> None:
        place = turn.place
        told = f"{place.length} tokens, cache {place.cache}, {turn.arm}: TTFT {turn.timed.ttft * 1e3:.0f} ms"
        self._progress.update(self._task, advance=1, description=told)
