"""``antiphon bench`` against a router over simulated engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from antiphon_server.cli import app


def bench(router: str, folder: Path, *options: str) -> Result:
    chart = str(folder / "bench.png")
    sizes = ("--lengths", "600,900", "--new", "100", "--answer", "20", "--repeat", "1")
    return CliRunner().invoke(app, ["bench", "sweep", "--router", router, "--chart", chart, *sizes, *options])


def figures(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "bench.json").read_text())
    return found


def test_every_length_is_measured_and_every_answer_compared(simulated_stack: Any, tmp_path: Path) -> None:
    stack = simulated_stack(prefill={"prefill_rate": 20000.0})
    result = bench(stack.router, tmp_path)
    assert result.exit_code == 0, result.output
    rows = figures(tmp_path)["rows"]
    assert [row["tokens"] for row in rows] == pytest.approx([600, 900], abs=25)
    assert all(row["same"] and row["reused"] for row in rows)
    assert all(row["cold"]["computed"] > 3 * row["reuse"]["computed"] for row in rows)
    assert all(row["reuse"]["received"] > 0 for row in rows)
    assert result.output.splitlines()[-1].startswith(f"cold / reuse at {rows[-1]['tokens']} tokens: ")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert stack.decode.pinned_blocks == 0


def test_warm_prefill_pulls_only_what_decode_alone_has(simulated_stack: Any, tmp_path: Path) -> None:
    stack = simulated_stack(prefill={"prefix_caching": True})
    result = bench(stack.router, tmp_path, "--answer", "60")
    assert result.exit_code == 0, result.output
    rows = figures(tmp_path)["rows"]
    assert {row["cache"] for row in rows} == {"warm"}
    assert all(0 < row["reuse"]["received"] < 100 * 1024 for row in rows)


def test_foreign_kv_fails_the_bench(simulated_stack: Any, tmp_path: Path) -> None:
    # An engine that believes every handle, and text that does not tokenise back to what was sampled.
    drifting = {"check": False, "drift": True}
    stack = simulated_stack(prefill=drifting, decode={"drift": True})
    result = bench(stack.router, tmp_path)
    assert result.exit_code == 1, result.output
    assert "answers differ" in result.output
    assert any(not row["same"] for row in figures(tmp_path)["rows"])


def test_router_that_reuses_nothing_fails_the_bench(simulated_stack: Any, tmp_path: Path) -> None:
    stack = simulated_stack(router={"paths": ["cold"]})
    result = bench(stack.router, tmp_path)
    assert result.exit_code == 1
    assert "not all was reused: cold (off)" in result.output


def test_gain_that_no_machine_reaches_fails_the_bench(simulated_stack: Any, tmp_path: Path) -> None:
    result = bench(simulated_stack().router, tmp_path, "--at-least", "1e9")
    assert result.exit_code == 1
    assert "below the 1e+09 that was asked for" in result.output


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--lengths", "many"), "is not a list of numbers"),
        (("--lengths", "100"), "too few for a second turn"),
    ],
)
def test_lengths_that_cannot_be_measured_are_a_fault(
    simulated_stack: Any, tmp_path: Path, options: tuple[str, ...], fault: str
) -> None:
    result = bench(simulated_stack().router, tmp_path, *options)
    assert result.exit_code == 2
    assert fault in result.output


def test_router_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    result = bench("http://127.0.0.1:9", tmp_path)
    assert result.exit_code == 2
    assert "start one with `antiphon up`" in result.output
