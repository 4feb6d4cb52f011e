"""Where our commands print."""

from __future__ import annotations

from rich.console import Console

WIDTH = 120
"""Of tables that go into a file, where no terminal says how wide it is."""


def screen() -> Console:
    """Standard output; tables keep their width in files, and long lines are left to the reader."""
    console = Console(soft_wrap=True)
    return console if console.is_terminal else Console(soft_wrap=True, width=WIDTH)
