"""What the doctor found, for people and for programs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata

from rich.console import Console
from rich.text import Text

from antiphon_server.doctor.finding import Examination, Fact, Finding, Severity

FORM = 1
"""Version of the form of ``--json``; it changes when a field is taken away or means something else."""
STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}
INDENT = 9


@dataclass(frozen=True, slots=True)
class Report:
    """``looked_at``: what was examined, in words."""

    looked_at: tuple[str, ...]
    examination: Examination
    strict: bool = False

    def count(self, severity: Severity) -> int:
        """Findings of that severity."""
        return sum(finding.severity is severity for finding in self.examination.findings)

    @property
    def exit_code(self) -> int:
        """1 with errors, and with warnings when strict; else 0."""
        return int(bool(self.count(Severity.ERROR) or (self.strict and self.count(Severity.WARNING))))


def as_json(report: Report) -> str:
    """See docs/doctor.md for its form."""
    seen = report.examination
    return json.dumps(
        {
            "form": FORM,
            "antiphon": metadata.version("antiphon"),
            "looked_at": list(report.looked_at),
            "exit_code": report.exit_code,
            "summary": {severity.value: report.count(severity) for severity in Severity},
            "findings": [asdict(finding) for finding in seen.findings],
            "facts": [asdict(fact) for fact in seen.facts],
            "checked": sorted(seen.checked),
        },
        indent=2,
    )


def failure_as_json(error: str) -> str:
    """What could not be looked at, and why: exit code 2."""
    return json.dumps(
        {"form": FORM, "antiphon": metadata.version("antiphon"), "exit_code": 2, "error": error}, indent=2
    )


def show(report: Report, console: Console) -> None:
    """What was seen, what was found, worst first, and a line that sums it up."""
    # A terminal gets folded lines; a file gets them whole, for grep.
    width = console.width if console.is_terminal else 0
    for line in _facts(report):
        console.print(Text(line, style="dim"), soft_wrap=True)
    for group in grouped(report.examination.findings):
        console.print(_title(group), soft_wrap=True)
        first = group[0]
        for label, text in (("what", first.what), ("why", _sentence(first.why)), ("mend", first.remedy)):
            console.print(_folded(label, text, width), soft_wrap=True)
        console.print()
    console.print(summary(report), soft_wrap=True)


def grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings that differ in their subject alone, together."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for one in findings:
        groups.setdefault((one.check, one.severity, one.what, one.why, one.remedy), []).append(one)
    return list(groups.values())


def summary(report: Report) -> Text:
    """The last line."""
    counts = [
        (f"{count} {severity.value}{'s' if count > 1 else ''}", STYLES[severity])
        for severity in Severity
        if (count := report.count(severity))
    ]
    checks = f"{len(report.examination.checked)} checks of {', '.join(report.looked_at)}"
    if not counts:
        return Text.assemble(("Nothing found", "bold green"), f" by {checks}.")
    line = Text(", ").join([Text(words, style=style) for words, style in counts])
    return line.append(f" by {checks}.")


def _title(group: Sequence[Finding]) -> Text:
    first = group[0]
    subjects = ", ".join(finding.subject for finding in group)
    word = f"{first.severity.value.upper():{INDENT}}"
    return Text.assemble((word, STYLES[first.severity]), (first.check, "bold"), "  ", subjects)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _folded(label: str, text: str, width: int) -> Text:
    style = "green" if label == "mend" else "dim" if label == "why" else ""
    start, rest = f"  {label:{INDENT - 2}}", " " * INDENT
    if width <= 2 * INDENT:
        return Text.assemble((start, "dim"), (text, style))
    folded = textwrap.fill(
        text,
        width,
        initial_indent=rest,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return Text.assemble((start, "dim"), (folded[INDENT:], style))


def _facts(report: Report) -> Iterator[str]:
    facts = report.examination.facts
    widths = [
        max((len(part) for part in column), default=0) for column in zip(*map(_parts, facts), strict=True)
    ]
    for fact in facts:
        subject, name = _parts(fact)
        yield f"{subject:{widths[0]}}  {name:{widths[1]}}  {fact.value}"
    if facts:
        yield ""


def _parts(fact: Fact) -> tuple[str, str]:
    return fact.subject, fact.name
