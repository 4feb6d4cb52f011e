from __future__ import annotations

import io

from rich.console import Console

from antiphon_server.bench.timing import Answer, Outcome, Timed
from antiphon_server.demo import show
from antiphon_server.demo.record import Measured, Row

TIMED = Timed(4.0, 5.0, 800, "p", Outcome("cold", 0, "first"), Answer((1,), "a"))
ROWS = [Row(1, "search_log", Measured(TIMED, 0), shown="a [red] answer [/]"), Row(2, "report")]


def shown_on(console: Console) -> str:
    with show.watcher(console) as watcher:
        watcher.note("warming up")
        watcher.turn(ROWS, 0, "without reuse", Measured(TIMED, 0))
        watcher.note("with reuse: turn 1 of 2, search_log")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_turns_are_lines_without_a_terminal() -> None:
    said = shown_on(Console(file=io.StringIO(), width=200))
    assert said.splitlines()[0] == "warming up"
    assert said.splitlines()[1].startswith("without reuse turn 1  TTFT   4.00 s  prompt   800  cold (first)")
    assert "a [red] answer [/]" in said


def test_terminal_shows_the_table_what_goes_on_and_the_answers() -> None:
    said = shown_on(Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None))
    assert "TTFT without" in said
    assert "with reuse: turn 1 of 2, search_log" in said
    assert "a [red] answer [/]" in said
