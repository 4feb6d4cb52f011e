"""Where results go."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon_server.bench.keep import KeepError, made
from antiphon_server.cli import app

DATA = Path(__file__).parents[1] / "data"
NOWHERE = "http://127.0.0.1:9"


def test_a_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    made(tmp_path / "a" / "b")
    made(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_what_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KeepError, match=r"file/x: .*Not a directory"):
        made(tmp_path / "file" / "x")


@pytest.mark.parametrize(
    "command",
    [
        ("bench", "simulate"),
        ("bench", "simulate", "--curve"),
        ("bench", "sweep", "--router", NOWHERE),
        ("bench", "router"),
        ("replay", str(DATA / "tau_bench"), "--router", NOWHERE),
    ],
    ids=" ".join,
)
def test_nothing_is_measured_that_could_not_be_kept(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert "no results can be kept there" in result.output
    assert "Traceback" not in result.output
