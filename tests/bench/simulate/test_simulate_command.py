"""``antiphon bench simulate``, as it is called."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon_server.cli import app

SMALL = ("--conversations", "6", "--turns", "4", "--prefill", "1", "--decode", "2", "--window", "20")


def call(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["bench", "simulate", *words])
    return found.exit_code, found.output


def test_policies_are_compared_and_written(tmp_path: Path) -> None:
    code, text = call(*SMALL, "--policy", "cold,auto", "--out", str(tmp_path))
    assert code == 0, text
    assert "SIMULATION" in text
    assert "TTFT off, 24k" in text
    report = json.loads((tmp_path / "simulate.json").read_text())
    assert report["label"].startswith("SIMULATION")
    assert [result["policy"] for result in report["results"]] == ["cold", "auto"]
    assert report["results"][0]["samples"] == []
    assert len(report["model"]["errors"]) == 10
    with (tmp_path / "simulate.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["turns"]) for row in rows[:3]] == [
        ("cold", "all"),
        ("cold", "1"),
        ("cold", "2-5"),
    ]
    assert all(row["simulation"] == "yes" for row in rows)
    head = (tmp_path / "simulate.csv").read_text().splitlines()[0].split(",")
    assert len(set(head)) == len(head)
    for row in rows:
        numbers = {name: float(cell) for name, cell in row.items() if name in head[3:]}  # no text in them
        assert numbers["share_append"] + numbers["share_reuse"] + numbers["share_cold"] == pytest.approx(1)
        assert 0 < numbers["ttft_p50_s"] <= numbers["ttft_most_s"] < 60
        assert numbers["moved_bytes"] > 1e6
    assert "SIMULATION" in (tmp_path / "simulate.md").read_text()
    assert (tmp_path / "simulate.png").read_bytes().startswith(b"\x89PNG")


def test_a_trace_is_simulated(tmp_path: Path) -> None:
    trace = Path(__file__).parents[2] / "data" / "coding_agents" / "trace_0058.json"
    code, text = call("--trace", str(trace), "--copies", "3", "--policy", "auto", "--out", str(tmp_path))
    assert code == 0, text
    assert json.loads((tmp_path / "simulate.json").read_text())["results"][0]["conversations"] == 3


def test_what_a_trace_does_not_tell_stands_in_every_report(tmp_path: Path) -> None:
    trace = Path(__file__).parents[2] / "data" / "tau_bench"
    code, text = call("--trace", str(trace), "--policy", "auto", "--out", str(tmp_path))
    assert code == 0, text
    (told, start, gaps) = json.loads((tmp_path / "simulate.json").read_text())["notes"]
    assert told == "the source has no times: no gaps are known"
    assert "when 10 of 10 conversations began" in start
    assert "100 of 100 gaps between turns are not in the log" in gaps
    for note in (told, start, gaps):
        assert f"note: {note}" in text
        assert f"- note: {note}\n" in (tmp_path / "simulate.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--policy", "cold,warm"), "--policy 'warm' is no policy: choose from cold, proxy, off"),
        (("--model", "llama"), "--model 'llama' has no rates: choose from qwen3-32b-p5en, glm"),
        (("--prefill", "65"), "--prefill 65: choose 1 to 64"),
        (("--decode", "65"), "--decode 65: choose 1 to 64"),
        (("--fit", "nowhere.json"), "nowhere.json cannot be read"),
        (("--kv", "1000"), "an engine holds 1000: raise --kv"),
        (("--budget", "2"), "--budget"),
        (("--budget", "nan"), "--budget"),
        (("--conversations", "99999999999"), "--conversations"),
        (("--turns", "99999"), "--turns"),
        (("--conversations", "100000", "--turns", "1000"), "--conversations 100000 of --turns 1000 are more"),
        (("--window", "inf"), "--window"),
        (("--window", "1e300"), "--window"),
        (("--window", "nan"), "--window"),
        (("--copies", "3"), "--copies without --trace"),
        (("--trace", "x", "--copies", "100000000"), "--copies"),
        (("--trace", "x"), "--trace with --conversations, --turns:"),
        (("--curve",), "--curve with --conversations, --turns, --prefill, --decode, --window:"),
        (("--model", "glm-5-fp8-p5en", "--fit", "sweep.json"), "--model with --fit sweep.json"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    code, text = call(*SMALL, *words, "--out", str(tmp_path))
    assert code == 2, text
    assert message in text
    assert "Traceback" not in text


def test_what_goes_with_traces_and_curves_is_named_too(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path))
    code, text = call("--trace", "nowhere", *out)
    assert (code, "nowhere" in text) == (2, True)
    code, text = call("--curve", "--fit", "sweep.json", *out)
    assert (code, "leave --fit out" in text) == (2, True)
    trace = Path(__file__).parents[2] / "data" / "coding_agents"
    code, text = call("--trace", str(trace), "--copies", "5000", *out)
    assert (code, "--copies 5000 of 231 calls are more than the 1000000 turns" in text) == (2, True)
