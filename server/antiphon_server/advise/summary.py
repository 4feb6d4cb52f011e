"""The advice on a terminal: the verdict first, a few screens at most."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from antiphon_server.advise import answers
from antiphon_server.advise.advice import Advice
from antiphon_server.advise.verdict import Verdict

_COLOURS = {
    Verdict.ON: "green",
    Verdict.CARE: "yellow",
    Verdict.OFF: "red",
    Verdict.UNKNOWN: "blue",
}


def show(advice: Advice, console: Console) -> None:
    """Print all of it."""
    blocks: list[RenderableType] = [_verdict(advice)]
    for number, answer in enumerate(answers.answers(advice), 1):
        blocks += ["", Text(f"{number}. {answer.question}", style="bold")]
        blocks += [_indented(Text(sentence)) for sentence in answer.text]
        if answer.table is not None:
            blocks.append(_indented(_table(answer.table)))
    # Sentences are wrapped here; the console leaves that to the reader otherwise.
    console.print(Group(*blocks, "", _settings(advice), "", _notes(advice)), soft_wrap=False)


def _indented(what: RenderableType) -> Padding:
    return Padding(what, (0, 0, 0, 3))


def _verdict(advice: Advice) -> RenderableType:
    judged = advice.judgement
    lines: list[Text] = [Text(answers.traffic(advice), style="dim")]
    lines += [Text(reason.text) for reason in judged.reasons]
    lines += [Text.assemble((f"{caution.cause}: ", "bold"), caution.text) for caution in judged.cautions]
    colour = _COLOURS[judged.verdict]
    title = Text(judged.verdict.capitalize(), style=f"bold {colour}")
    return Panel(Group(*lines), title=title, title_align="left", border_style=colour)


def _table(table: answers.Table) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for number, name in enumerate(table.head):
        shown.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown


def _settings(advice: Advice) -> RenderableType:
    shown = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    shown.add_column(no_wrap=True)
    shown.add_column(no_wrap=True)
    shown.add_column(style="dim")
    for setting in (*advice.settings.router, *advice.settings.engine):
        shown.add_row(Text(setting.name), Text(setting.value), Text(setting.because))
    parts: list[RenderableType] = [Text("Settings", style="bold"), _indented(shown)]
    if advice.settings.fleet:
        parts.append(_indented(Text(advice.settings.fleet)))
    return Group(*parts)


def _notes(advice: Advice) -> RenderableType:
    lines = [f"{name}: {said}" for name, said in advice.hardware.sources]
    lines += advice.source.notes
    return Group(
        Text("Where the figures come from", style="bold"),
        *(_indented(Text(line, style="dim")) for line in lines),
    )
