"""A replay in which nothing was reused does not pass for a good one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from antiphon_server.bench.replay.idle import idle
from antiphon_server.bench.replay.record import Served
from antiphon_server.cli import app

DATA = Path(__file__).parents[2] / "data" / "coding_agents"


def served(turn: int, path: str = "cold", reason: str = "failed", **more: Any) -> Served:
    return replace(Served("c", turn, "auto", 0.0, 0.0, path=path, reason=reason), **more)


def replay(folder: Path, router: str, turns: int) -> Result:
    size = ("--scale", "64", "--conversations", "2", "--turns", str(turns), "--longest-answer", "8")
    command = ["replay", str(DATA), "--router", router, "--compare", "--time", "none", "--out", str(folder)]
    return CliRunner().invoke(app, [*command, *size, "--no-warm-up"])


def test_reasons_are_counted_most_frequent_first() -> None:
    turns = [served(1), served(2, reason="lost"), served(3), served(4), served(5, error="gone")]
    (found,) = idle(["auto"], turns)
    assert (found.turns, found.chosen) == (3, False)
    assert "auto reused nothing in 3 later turns: 2 cold (failed), 1 cold (lost)." in str(found)


@pytest.mark.parametrize(
    "turns",
    [
        [served(1, reason="first")],
        [served(1), served(2), served(3, "reuse", "full", matched=64)],
        [served(1), served(2, "unknown", "unknown")],
        [served(1), served(2, error="gone")],
    ],
)
def test_one_reuse_will_do_and_without_later_turns_nothing_is_said(turns: list[Served]) -> None:
    assert list(idle(["auto"], turns)) == []


def test_arms_without_ids_or_named_cold_are_not_to_reuse() -> None:
    assert list(idle([], [served(1), served(2)])) == []
    assert list(idle(["cold"], [replace(served(2, reason="off"), arm="cold")])) == []


def test_what_the_router_chose_is_no_fault() -> None:
    (found,) = idle(["auto"], [served(1), served(2, reason="slower")])
    assert found.chosen
    (found,) = idle(["auto"], [served(2), served(3, reason="slower")])
    assert not found.chosen


def test_a_router_that_reuses_nothing_fails_the_replay(simulated_stack: Any, tmp_path: Path) -> None:
    router = simulated_stack(router={"paths": ["cold"]}).router
    result = replay(tmp_path, router, turns=3)
    assert result.exit_code == 1, result.output
    assert "FAILED  on reused nothing in 4 later turns: 4 cold (off)." in result.output
    assert "FAILED  off" not in result.output
    assert "- FAILED  on reused nothing" in (tmp_path / "replay.md").read_text()
    (found,) = json.loads((tmp_path / "replay.json").read_text())["idle"]
    assert (found["arm"], found["outcomes"]) == ("on", {"cold (off)": 4})


def test_first_turns_alone_have_nothing_to_reuse(simulated_stack: Any, tmp_path: Path) -> None:
    router = simulated_stack(router={"paths": ["cold"]}).router
    result = replay(tmp_path, router, turns=1)
    assert result.exit_code == 0, result.output
    assert "reused nothing" not in result.output
