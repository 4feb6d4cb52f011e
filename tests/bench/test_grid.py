"""Tables on screens of several widths."""

from __future__ import annotations

import io

from rich.console import Console

from antiphon_server.bench.grid import Grid

NAMES = ("turn", "arm", "turns", "TTFT p50", "between tokens p50", "not computed", "paths")
PATHS = "100 reuse (local), 24 reuse (full), 14 cold (lost)"


def shown(width: int) -> list[str]:
    grid = Grid(NAMES, keys=2, left=frozenset({"arm", "paths"}), wrapped=frozenset({"paths"}))
    grid.add("1", "off", "12", "1234 ms", "17 ms", "93%", "12 cold (off)")
    grid.add()
    grid.add(
        "2+", "reuse", "138", "234 ms", "18 ms", "97%", "100 reuse (local), 24 reuse (full), 14 cold (lost)"
    )
    console = Console(file=io.StringIO(), width=width, soft_wrap=True)
    console.print(grid)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_wide_screen_has_all_columns_beside_each_other() -> None:
    head, *rows = shown(160)
    assert head.split() == " ".join(NAMES).split()
    assert len(rows) == 3
    assert rows[-1].endswith(PATHS)


def test_a_narrow_screen_has_them_below_each_other_each_with_its_keys() -> None:
    lines = shown(48)
    assert max(map(len, lines)) <= 48
    heads = [line for line in lines if line.startswith("turn")]
    assert len(heads) > 1
    assert all(head.split()[:2] == ["turn", "arm"] for head in heads)
    for name in NAMES[2:]:
        assert sum(name in head for head in heads) >= 1, name
    text = "\n".join(lines)
    assert "…" not in text
    for cell in ("1234 ms", "18 ms", "97%", "14 cold"):
        assert cell in text


def test_a_screen_too_narrow_for_one_column_still_ends() -> None:
    assert len(shown(5)) > len(NAMES)
