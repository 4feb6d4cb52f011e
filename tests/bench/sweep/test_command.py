"""``antiphon bench sweep`` against routers over simulated engines, on real sockets."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from antiphon_server.bench import arms, engines
from antiphon_server.bench.sweep import figures
from antiphon_server.cli import app

ROUTERS = {
    "off": {"paths": ["cold"]},
    "reuse": {"paths": ["reuse"]},
    "auto": {"paths": ["cold", "reuse", "append"]},
}
SIZES = ("--lengths", "300", "--turns", "2", "--new", "40", "--answer", "20", "--repeat", "1")
"""Of the preset ``cpu``, whose conversations and clients are one."""
FULLER = ("--lengths", "300,600", "--turns", "3")


@pytest.fixture(autouse=True)
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing calibrates here, and pictures take longer than all else."""
    monkeypatch.setattr(engines, "REST_S", 0.0)
    monkeypatch.setattr(figures, "draw", lambda *_: [])


def sweep(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["bench", "sweep", "--out", str(folder), *SIZES, *options])


def named(stack: Any) -> list[str]:
    return [word for name, url in stack.routers.items() for word in ("--router", f"{name}={url}")]


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "sweep.json").read_text())
    return found


def test_every_turn_is_measured_in_every_arm_and_every_answer_compared(
    simulated_stack: Any, tmp_path: Path
) -> None:
    stack = simulated_stack(prefill={"prefill_rate": 20000.0}, routers=ROUTERS)
    result = sweep(tmp_path, *named(stack), *FULLER)
    assert result.exit_code == 0, result.output
    found = report(tmp_path)
    turns = found["sweep"]["turns"]
    assert len(turns) == 3 * 2 * 3
    assert "answers identical in all arms: 18 turns" in result.output
    later = {(c["arm"], c["length"]): c for c in found["cells"] if c["cache"] == "empty"}
    assert set(later) == {(arm, length) for arm in ROUTERS for length in (300, 600)}
    assert all(cell["ttft"]["n"] == 2 for cell in later.values())
    assert later["reuse", 600]["paths"] == {"reuse (full)": 2}
    assert later["off", 600]["paths"] == {"cold (off)": 2}
    assert later["off", 600]["computed"] > 4 * later["reuse", 600]["computed"] > 0
    assert later["reuse", 600]["received"] > 0 == later["off", 600]["received"]
    assert all(len(turn["timed"]["answer"]["ids"]) == 20 for turn in turns)
    assert result.output.splitlines()[-1].startswith("off / reuse at 600 tokens, prefill's cache empty: ")
    assert stack.decode.pinned_blocks == 0


def test_tables_are_written(simulated_stack: Any, tmp_path: Path) -> None:
    result = sweep(tmp_path, *named(simulated_stack(routers=ROUTERS)))
    assert result.exit_code == 0, result.output
    lines = list(csv.DictReader((tmp_path / "sweep.csv").read_text().splitlines()))
    assert len(lines) == 6
    assert {line["arm"] for line in lines} == set(ROUTERS)
    assert all(float(line["ttft"]) > 0 and int(line["answer_tokens"]) == 20 for line in lines)
    text = (tmp_path / "sweep.md").read_text()
    assert "| 300 | off |" in text
    assert "answers identical" in text


def test_both_states_of_prefills_cache_are_measured_where_it_can_be_emptied(
    simulated_stack: Any, tmp_path: Path
) -> None:
    stack = simulated_stack(prefill={"prefix_caching": True, "dev": True}, routers=ROUTERS)
    result = sweep(tmp_path, *named(stack))
    assert result.exit_code == 0, result.output
    cells = {(c["cache"], c["arm"], c["length"]): c for c in report(tmp_path)["cells"]}
    assert cells["empty", "off", 300]["computed"] > 300
    assert 0 < cells["warm", "off", 300]["computed"] < 200
    assert cells["first", "off", 300]["ttft"]["n"] == 2


def test_cache_that_cannot_be_emptied_is_said_to_be_warm(simulated_stack: Any, tmp_path: Path) -> None:
    stack = simulated_stack(prefill={"prefix_caching": True}, routers=ROUTERS)
    result = sweep(tmp_path, *named(stack))
    assert result.exit_code == 0, result.output
    assert "could not be emptied" in result.output
    assert {cell["cache"] for cell in report(tmp_path)["cells"]} == {"warm", "first"}


def test_several_clients_share_their_rounds_counters(simulated_stack: Any, tmp_path: Path) -> None:
    stack = simulated_stack(routers=ROUTERS)
    several = ("--clients", "2", "--active", "3", "--conversations", "5", "--lengths", "300")
    result = sweep(tmp_path, *named(stack), *several)
    assert result.exit_code == 0, result.output
    turns = report(tmp_path)["sweep"]["turns"]
    assert len(turns) == 3 * 5 * 2
    first = [t for t in turns if t["arm"] == "off" and t["place"]["turn"] == 2]
    groups = [
        {t["prefill"]["computed"] for t in first if (t["place"]["conversation"] < 3) is g}
        for g in (True, False)
    ]
    assert all(len(group) == 1 for group in groups)
    # All of a cold prompt is computed, so the shares of a round come to its prompts.
    assert sum(t["prefill"]["computed"] for t in first) == sum(t["timed"]["prompt_tokens"] for t in first)


def test_wrong_answer_fails_the_sweep(simulated_stack: Any, tmp_path: Path) -> None:
    # An engine that believes every handle, and text that does not tokenise back to what was sampled.
    drifting = {"check": False, "drift": True}
    stack = simulated_stack(prefill=drifting, decode={"drift": True}, routers=ROUTERS)
    result = sweep(tmp_path, *named(stack))
    assert result.exit_code == 1, result.output
    assert "ANSWERS DIFFER" in result.output
    assert "answers identical" not in result.output
    assert "arm reuse, 300 tokens, conversation 0" in result.output
    assert report(tmp_path)["verdict"]["differences"]


def test_router_that_reuses_nothing_fails_the_sweep(simulated_stack: Any, tmp_path: Path) -> None:
    stack = simulated_stack(routers={"off": {"paths": ["cold"]}, "reuse": {"paths": ["cold"]}})
    result = sweep(tmp_path, *named(stack))
    assert result.exit_code == 1
    assert "arm reuse reused nothing: cold (off)" in result.output


def test_one_router_is_measured_without_and_with_ids(simulated_stack: Any, tmp_path: Path) -> None:
    stack = simulated_stack()
    result = sweep(tmp_path, "--router", f"{stack.router}/v1/")
    assert result.exit_code == 0, result.output
    paths = {c["arm"]: c["paths"] for c in report(tmp_path)["cells"] if c["cache"] == "empty"}
    assert paths == {"off": {"cold (anonymous)": 1}, "configured": {"reuse (full)": 1}}


@pytest.mark.parametrize(
    ("limit", "fault"),
    [
        (("--at-least", "1e9"), "is below the 1e+09 that was asked for"),
        (("--auto-within", "1e-9"), "is above the 1e-09 that was asked for"),
    ],
)
def test_limit_that_is_not_kept_fails_the_sweep(
    simulated_stack: Any, tmp_path: Path, limit: tuple[str, str], fault: str
) -> None:
    # Decode computes slowly, so that the arm that computes there loses in every pair.
    slow = {"routers": {"off": {"paths": ["cold"]}, "auto": {"paths": ["append"]}}}
    stack = simulated_stack(decode={"prefill_rate": 1000.0}, **slow)
    result = sweep(tmp_path, *named(stack), *limit, "--lengths", "300")
    assert result.exit_code == 1, result.output
    assert f"FAILED: {'auto' if 'within' in limit[0] else 'off'} / " in result.output
    assert fault in result.output


def test_fleet_that_is_not_the_published_one_is_said_so(simulated_stack: Any, tmp_path: Path) -> None:
    stack = simulated_stack(prefill={"prefix_caching": True}, routers=ROUTERS)
    small = ("--conversations", "2", "--active", "2", "--settle", "0")
    result = sweep(tmp_path, *named(stack), "--preset", "announcement-glm-5", *small)
    assert result.exit_code == 0, result.output
    assert "not the published fleet: model simulated: the announcement has GLM-5-FP8" in result.output
    assert "start the engines with --tensor-parallel-size 8" in result.output
    assert "start prefill with --no-enable-prefix-caching" in result.output


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--lengths", "many"), "is not a list of numbers: write it like 1000,4000"),
        (("--lengths", "0,5"), "a prefix has one token or more"),
        (("--lengths", "131072"), "shorten them to "),
        (("--clients", "4", "--active", "2"), "raise --active or lower --clients"),
        (("--preset", "gpu"), "take one of cpu, announcement-qwen3-32b, announcement-glm-5"),
    ],
)
def test_plan_that_cannot_be_measured_is_a_fault(
    simulated_stack: Any, tmp_path: Path, options: tuple[str, ...], fault: str
) -> None:
    result = sweep(tmp_path, "--router", simulated_stack().router, *options)
    assert result.exit_code == 2
    assert fault in result.output
    assert "Traceback" not in result.output


def test_published_fleet_is_not_started_here(tmp_path: Path) -> None:
    result = sweep(tmp_path, "--preset", "announcement-qwen3-32b")
    assert result.exit_code == 2
    assert "name its --router" in result.output
    assert "--no-enable-prefix-caching" in result.output


def test_router_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    result = sweep(tmp_path, "--router", "http://127.0.0.1:9")
    assert result.exit_code == 2
    assert "start one with `antiphon up`" in result.output


def test_routers_over_other_engines_are_not_compared(simulated_stack: Any, tmp_path: Path) -> None:
    one, two = simulated_stack(), simulated_stack()
    result = sweep(tmp_path, "--router", f"reuse={one.router}", "--router", f"auto={two.router}")
    assert result.exit_code == 2
    assert "name routers over the same engines" in result.output


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--at-least", "nan"), "--at-least"),
        (("--at-least", "inf"), "--at-least"),
        (("--at-least", "0"), "--at-least"),
        (("--auto-within", "inf"), "--auto-within"),
        (("--auto-within", "nan"), "--auto-within"),
        (("--settle", "nan"), "--settle"),
        (("--lengths", "99999999"), "--lengths 99999999: no model takes more than 2000000 tokens"),
    ],
)
def test_no_engine_is_started_for_options_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: tuple[str, ...], fault: str
) -> None:
    monkeypatch.setattr(arms, "started", lambda *_: pytest.fail("engines were started"))
    result = sweep(tmp_path, *options)
    assert result.exit_code == 2, result.output
    assert fault in result.output
    assert "Traceback" not in result.output
