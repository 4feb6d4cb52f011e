"""What a page of ``docs/`` tells its readers to write and to run, by the marks that precede its blocks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from string import Template

from rig.recipe import ROOT

_BLOCK = re.compile(r"<!-- (?:file|run): (\S+) -->\n```\w*\n(.*?)```", re.DOTALL)


def blocks(page: str) -> dict[str, str]:
    """The marked blocks of a page by name."""
    return dict(_BLOCK.findall((ROOT / "docs" / page).read_text()))


def command(page: str, name: str, **variables: object) -> list[str]:
    """The words of a command, with its variables given values."""
    values = {key: shlex.quote(str(value)) for key, value in variables.items()}
    text = blocks(page)[name].replace("\\\n", "")  # as the shell joins lines
    return shlex.split(Template(text).substitute(values))


def write_files(page: str, folder: Path) -> None:
    """Write the page's files into a folder."""
    for name, text in blocks(page).items():
        if "." in name:
            (folder / name).write_text(text)
