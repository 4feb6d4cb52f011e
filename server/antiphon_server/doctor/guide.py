"""The guide's tables of checks, written from the code.

``python -m antiphon_server.doctor.guide docs/doctor.md`` writes them into the page; a test compares.
"""

from __future__ import annotations

import sys
from pathlib import Path

from antiphon_server.doctor.checks import DECLARED
from antiphon_server.doctor.finding import Check
from antiphon_server.doctor.fleet.checks import FLEET
from antiphon_server.doctor.machine.checks import MACHINE

TABLES: dict[str, tuple[Check, ...]] = {"manifests": DECLARED, "machine": MACHINE, "fleet": FLEET}


def table(checks: tuple[Check, ...]) -> str:
    """One row a check. What a finding is at most: some are milder."""
    rows = [f"| `{check.word}` | {check.severity} | {_cell(check.line)} |" for check in checks]
    return "\n".join(
        ["| Check | Severity | What holds when it finds nothing |", "| --- | --- | --- |", *rows]
    )


def written(page: str) -> str:
    """The page with its tables as they are now; they stand between ``<!-- checks: name -->`` and an end."""
    for name, checks in TABLES.items():
        start, end = f"<!-- checks: {name} -->\n", "\n<!-- end -->"
        before, found, rest = page.partition(start)
        if not found or end not in rest:
            raise ValueError(
                f"the page has no table of {name}: put {start.strip()} and {end.strip()} where it goes"
            )
        page = f"{before}{start}\n{table(checks)}\n{end}{rest.partition(end)[2]}"
    return page


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.write_text(written(place.read_text(encoding="utf-8")), encoding="utf-8")
