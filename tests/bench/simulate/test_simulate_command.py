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
    assert "SIMULATION" in (tmp_path / "simulate.md").read_text()
    assert (tmp_path / "simulate.png").read_bytes().startswith(b"\x89PNG")


def test_a_trace_is_simulated(tmp_path: Path) -> None:
    trace = Path(__file__).parents[2] / "data" / "coding_agents" / "trace_0058.json"
    code, text = call("--trace", str(trace), "--copies", "3", "--policy", "auto", "--out", str(tmp_path))
    assert code == 0, text
    assert json.loads((tmp_path / "simulate.json").read_text())["results"][0]["conversations"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--policy", "warm"), "no policy 'warm'"),
        (("--model", "llama"), "no rate model 'llama'"),
        (("--prefill", "65"), "prefills is 65: choose 1 to 64"),
        (("--fit", "nowhere.json"), "nowhere.json cannot be read"),
        (("--kv", "1000"), "an engine holds 1000"),
        (("--budget", "2"), "keep_share"),
        (("--trace", "nowhere"), "nowhere"),
        (("--curve", "--fit", "sweep.json"), "leave --fit out"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    code, text = call(*SMALL, *words, "--out", str(tmp_path))
    assert code == 2, text
    assert message in text
    assert "Traceback" not in text
