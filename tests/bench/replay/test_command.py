"""``antiphon replay`` over real sockets, against a router over simulated engines."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from antiphon_server.bench.replay.play import Player
from antiphon_server.cli import app
from antiphon_server.simulator import Fault
from antiphon_server.traces.read import read

DATA = Path(__file__).parents[2] / "data"
LARGE = {"capacity": 32768}
"""Blocks, for a long prompt of a byte a token."""

SHORT = ("--conversations", "6", "--turns", "6")

Play = Callable[..., Result]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    def played(*options: str, data: str | Path = "coding_agents", time: str = "none") -> Result:
        told = ["--time", time, "--out", str(tmp_path / "out"), "--longest-answer", "8", *options]
        return CliRunner().invoke(app, ["replay", str(DATA / data), *told])

    return played


@pytest.fixture
def figures(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    def read_figures() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((tmp_path / "out" / "replay.json").read_text())
        return found

    return read_figures


def at_once(turns: list[dict[str, Any]]) -> int:
    """Most turns that ran at the same time."""
    ends = sorted([(turn["at"], 1) for turn in turns] + [(turn["at"] + turn["total"], -1) for turn in turns])
    return max(itertools.accumulate(change for _, change in ends))


def test_blocks_become_prompts_of_the_recorded_length(
    simulated_stack: Any, play: Play, figures: Any, tmp_path: Path
) -> None:
    stack = simulated_stack(prefill=LARGE, decode=LARGE)
    result = play("--router", stack.router, "--scale", "32", "--clients", "3", *SHORT)
    assert result.exit_code == 0, result.output
    found = figures()
    recorded = {c.name: c.calls[:6] for c in read([DATA / "coding_agents"]).conversations[:6]}
    assert len(found["turns"]) == sum(map(len, recorded.values()))
    exact = 0
    for turn in found["turns"]:
        calls, index = recorded[turn["conversation"]], turn["turn"] - 1
        grown = calls[index].prompt - (calls[index - 1].prompt if index else 0)
        length = calls[index].prompt / 32
        # What is new is at least an answer and some frames long, however little it is in the record.
        assert turn["prompt"] > length - 12
        if grown > 32 * 150:
            assert turn["prompt"] < length + 12
            exact += 1
    assert exact > len(recorded)
    assert at_once(found["turns"]) == 3
    with (tmp_path / "out" / "turns.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(found["turns"])
    assert (tmp_path / "out" / "replay.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "out" / "replay.md").read_text()
    assert "| 6+ | configured |" in text
    assert "a token stands for 32" in text
    assert stack.decode.pinned_blocks == 0


@pytest.mark.parametrize("data", ["tau_bench", "swe_agent"])
def test_every_answer_of_recorded_text_is_compared_and_decode_holds_what_was_said(
    simulated_stack: Any, play: Play, figures: Any, data: str
) -> None:
    stack = simulated_stack(prefill=LARGE, decode=LARGE)
    options = ("--conversations", "2", "--clients", "2", "--longest-answer", "40", "--turns", "4")
    result = play("--router", stack.router, "--compare", *options, data=data)
    assert result.exit_code == 0, result.output
    found = figures()
    assert found["compared"] == len(found["turns"]) / 2 >= 8
    assert found["differences"] == []
    assert "all equal, token for token" in result.output
    # The simulated model would end after 24.
    assert {turn["answer"] for turn in found["turns"]} >= {40}
    assert at_once(found["turns"]) == 2
    later = [turn for turn in found["turns"] if turn["turn"] > 1]
    for turn in later:
        assert turn["path"] == ("reuse" if turn["arm"] == "on" else "cold")
        if turn["path"] == "reuse":
            # Live answers are in the prompt as they were said: all whole blocks are of use.
            assert turn["matched"] == turn["held"] // 16 * 16
    assert f"; not appended: {len(later) // 2} off" in result.output
    rows = {(row["arm"], row["kind"]): row for row in found["rows"]}
    assert rows["on", "2+"]["reused"] == 1.0
    assert rows["off", "2+"]["reused"] == 0.0
    totals = {total["arm"]: total for total in found["totals"]}
    assert totals["off"]["prefill"]["computed"] > 2 * totals["on"]["prefill"]["computed"]
    assert totals["on"]["prefill"]["received"] > 0 == totals["off"]["prefill"]["received"]


def test_foreign_kv_is_seen_as_a_difference(simulated_stack: Any, play: Play, figures: Any) -> None:
    # An engine that believes every handle, and text that does not tokenise back to what was sampled.
    stack = simulated_stack(prefill={"check": False, "drift": True, **LARGE}, decode={"drift": True, **LARGE})
    result = play(
        "--router", stack.router, "--compare", "--conversations", "1", "--turns", "3", data="tau_bench"
    )
    assert result.exit_code == 1, result.output
    (difference, *_) = figures()["differences"]
    assert difference["turn"] >= 2
    assert difference["token"] is not None
    assert "ANSWERS DIFFER" in result.output
    assert "this is a defect of the server" in result.output


def test_a_stream_that_breaks_off_ends_its_conversation_and_no_other(
    simulated_stack: Any, play: Play, figures: Any
) -> None:
    stack = simulated_stack()
    stack.decode.faults.add(Fault(kind="cut", chunks=3, path="/v1/chat"))
    options = ("--conversations", "3", "--scale", "64", "--turns", "3", "--no-warm-up")
    result = play("--router", stack.router, *options)
    assert result.exit_code == 1, result.output
    found = figures()
    failed = [turn for turn in found["turns"] if turn["error"]]
    assert len(failed) == 1
    assert len({turn["conversation"] for turn in found["turns"]}) == 3
    (total,) = found["totals"]
    assert total["errors"] == 1
    assert total["left_out"] > 0
    assert f"FAILED  configured, {failed[0]['conversation']}, turn 1: " in result.output


@pytest.mark.parametrize(
    "fault", [{"kind": "cut", "chunks": 3}, {"kind": "drop"}, {"kind": "status", "code": 500}]
)
def test_any_server_is_replayed_against_and_its_faults_are_told(
    simulated_stack: Any, play: Play, figures: Any, fault: dict[str, Any]
) -> None:
    # An engine by itself: no router of ours, no paths, no ids.
    stack = simulated_stack()
    stack.decode.faults.add(Fault(path="/v1/chat", **fault))
    options = ("--conversations", "2", "--scale", "64", "--turns", "2", "--no-warm-up")
    result = play("--router", f"plain={stack.decode_url}", *options)
    assert result.exit_code == 1, result.output
    found = figures()
    (failed,) = [turn for turn in found["turns"] if turn["error"]]
    good = [turn for turn in found["turns"] if not turn["error"]]
    assert {turn["path"] for turn in good} == {"unknown"}
    assert all(turn["matched"] > 0 for turn in good if turn["turn"] > 1)
    assert failed["error"]
    assert found["conditions"]["engines"] == "engines unknown"


def test_a_server_that_is_gone_ends_the_replay_with_what_was_measured(
    simulated_stack: Any, play: Play, figures: Any
) -> None:
    stack = simulated_stack()
    stack.decode.faults.add(Fault(kind="drop", path="/v1/chat", times=100))
    result = play("--router", f"plain={stack.decode_url}", "--scale", "64", "--no-warm-up")
    assert result.exit_code == 1, result.output
    found = figures()
    assert len(found["turns"]) == 8
    assert "STOPPED  plain could not be reached 8 times in a row" in result.output


def test_a_turn_that_takes_too_long_fails(simulated_stack: Any, play: Play, figures: Any) -> None:
    stack = simulated_stack()
    stack.decode.faults.add(Fault(kind="slow", seconds=60.0, path="/v1/chat"))
    options = ("--conversations", "2", "--turns", "1", "--scale", "64", "--no-warm-up", "--timeout", "1")
    result = play("--router", stack.router, *options)
    stack.decode.faults.clear()
    assert result.exit_code == 1, result.output
    assert [turn["error"] for turn in figures()["turns"] if turn["error"]] == [
        "TimeoutError: no whole answer within 1 s"
    ]


def test_several_routers_over_the_same_engines_are_compared(
    simulated_stack: Any, play: Play, figures: Any
) -> None:
    stack = simulated_stack()
    names = (f"off={stack.router}", f"a={stack.router}", f"b={stack.router}")
    options = [option for name in names for option in ("--router", name)]
    result = play(*options, "--conversations", "4", "--scale", "64", "--turns", "2", "--at-least", "a/b=1e-9")
    assert result.exit_code == 0, result.output
    found = figures()
    assert found["arms"] == ["off", "a", "b"]
    assert [(ratio["slow"], ratio["fast"]) for ratio in found["ratios"]] == [("off", "b"), ("a", "b")]
    # The same conversation by each arm in turn, and another arm first each time.
    order = list(dict.fromkeys((turn["conversation"], turn["arm"]) for turn in found["turns"]))
    assert [arm for _, arm in order] == ["off", "a", "b", "a", "b", "off", "b", "off", "a", "off", "a", "b"]
    assert len({name for name, _ in order[:3]}) == 1
    # Over all groups; this prefill computes all that nobody hands to it.
    prompts = sum(turn["prompt"] for turn in found["turns"] if turn["arm"] == "off")
    assert found["totals"][0]["prefill"]["computed"] == prompts
    salts = {r.body["cache_salt"] for r in stack.decode.requests if r.path.endswith("completions")}
    assert len({salt.rpartition("-")[2] for salt in salts if not salt.endswith("warm-up")}) == 3


def test_gaps_pass_between_an_answer_and_the_next_turn(
    simulated_stack: Any, play: Play, figures: Any
) -> None:
    options = ("--router", simulated_stack().router, "--scale", "64", "--conversations", "2", "--turns", "4")
    result = play(*options, "--no-warm-up", "--longest-gap", "20", time="100")
    assert result.exit_code == 0, result.output
    found = figures()["turns"]
    recorded = {c.name: c.calls for c in read([DATA / "coding_agents"]).conversations}
    for before, turn in itertools.pairwise(found):
        if turn["turn"] > 1:
            gap = recorded[turn["conversation"]][turn["turn"] - 1].gap
            assert turn["gap"] == pytest.approx(min(20.0, gap) / 100)
            assert turn["at"] >= before["at"] + before["total"] + turn["gap"]
    assert max(turn["gap"] for turn in found) == 0.2


class _BegunError(Exception):
    pass


def test_how_long_the_gaps_take_is_told_before_the_first_turn(
    simulated_stack: Any, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begin(*_: object) -> None:
        raise _BegunError

    monkeypatch.setattr(Player, "warm_up", begin)
    result = play("--router", simulated_stack().router, "--scale", "64", time="real")
    assert isinstance(result.exception, _BegunError), result.output
    calls = [call for c in read([DATA / "coding_agents"]).conversations for call in c.calls[1:]]
    hours = math.floor(sum(call.gap or 0.0 for call in calls) / 360) / 10
    assert f"gaps alone take at least {hours:g} h with one client; the longest" in result.output
    assert "--longest-gap bounds each" in result.output


def test_gain_that_no_machine_reaches_fails(simulated_stack: Any, play: Play) -> None:
    options = ("--compare", "--conversations", "1", "--scale", "64", "--turns", "2")
    result = play("--router", simulated_stack().router, *options, "--at-least", "off/on=1e9")
    assert result.exit_code == 1
    assert "below the 1e+09 that was asked for" in result.output


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--time", "fast"), "--time 'fast' is no pace"),
        (("--scale", "0"), "--scale 0: it must be above 0"),
        (("--at-least", "auto"), "write it like reuse/auto=1.3"),
        (("--at-least", "on/auto=1"), "names 'on', which is no arm here"),
        (("--least-turns", "10000"), "raise --scale"),
        (("--format", "none"), "there is no format 'none'"),
        (("--compare", "--router", "b=http://127.0.0.1:9"), "--router"),
    ],
)
def test_what_cannot_be_replayed_is_a_fault(
    idle_stack: Any, play: Play, options: tuple[str, ...], fault: str
) -> None:
    result = play("--router", idle_stack.router, *options)
    assert result.exit_code == 2, result.output
    assert fault in result.output
    assert "Traceback" not in result.output


def test_a_server_that_is_not_there_is_a_fault(play: Play) -> None:
    result = play("--router", "http://127.0.0.1:9")
    assert result.exit_code == 2
    assert "no OpenAI-compatible server answers at http://127.0.0.1:9" in result.output


def test_a_server_that_answers_no_turn_is_a_fault(simulated_stack: Any, play: Play) -> None:
    stack = simulated_stack()
    stack.decode.faults.add(Fault(kind="status", code=500, path="/v1/chat", times=100))
    result = play("--router", f"plain={stack.decode_url}", "--scale", "32")
    assert result.exit_code == 2
    assert "plain (http" in result.output
    assert "does not answer" in result.output


def test_a_trace_that_is_not_there_is_a_fault(play: Play, tmp_path: Path) -> None:
    result = play(data=tmp_path / "none.json")
    assert result.exit_code == 2
    assert "there is no such file or folder" in result.output
