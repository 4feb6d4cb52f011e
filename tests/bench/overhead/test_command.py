"""``antiphon bench router`` in a small configuration: real processes, real sockets."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner, Result

from antiphon_server.bench.overhead import contenders as field
from antiphon_server.cli import app
from rig.foreground import foreground
from rig.peers import environment

SMALL = ("--rounds", "1", "--seconds", "0", "--conversations", "0")
PATIENCE = 60.0


def bench(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["bench", "router", "--out", str(folder), *options])


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No peers' environment."""
    monkeypatch.delenv("ANTIPHON_PEERS", raising=False)
    monkeypatch.setattr(sys, "prefix", "/nowhere")


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "router.json").read_text())
    return found


def test_every_contender_is_measured_in_every_cell_and_loses_nothing(alone: None, tmp_path: Path) -> None:
    result = bench(
        tmp_path,
        *("--sizes", "2,64", "--connections", "1,3", "--streams", "30", "--stream-seconds", "0.5"),
        *SMALL,
    )
    assert result.exit_code == 0, result.output
    assert "no peer to compare with" in result.output
    found = report(tmp_path)
    names = [one.name for one in field.ALL if one.kind is not field.Kind.PEER]
    assert [row["contender"] for row in found["rows"]] == names * 8
    for row in found["rows"]:
        assert row["count"] == row["cell"]["connections"]
        assert 0 < row["median"] <= row["p99"]
    direct = found["rows"][0]
    assert direct["added"] == 0
    crowds = found["crowds"]
    assert [row["contender"] for row in crowds] == ["direct", "pass-through", "least P/D", field.FIRST.name]
    assert [(row["lost"], row["disordered"]) for row in crowds] == [(0, 0)] * 4
    assert (tmp_path / "router.md").read_text().count("**2 KB, streaming**") == 1
    assert (tmp_path / "router.png").stat().st_size > 10_000


def test_another_router_and_other_libraries_are_measured_beside_ours(tmp_path: Path) -> None:
    names = [field.SHORT.name, field.PEER, *(one.name for one in field.LIBRARIES)]
    result = bench(
        tmp_path,
        *("--peers", str(environment()), "--libraries", "--only", ";".join(names), "--sizes", "2"),
        *("--connections", "1", "--streams", "", *SMALL),
    )
    assert result.exit_code == 0, result.output
    found = report(tmp_path)
    order = [
        one.name
        for one in (*field.ALL, *field.LIBRARIES)
        if one.kind is field.Kind.DIRECT or one.name in names
    ]
    assert [row["contender"] for row in found["rows"]] == order * 2
    assert {"vllm-router", "granian", "uvicorn"} < set(found["machine"]["versions"])
    judged = {verdict["name"]: verdict["passed"] for verdict in found["verdicts"]}
    assert judged["2 KB takes at most 1.5 times as long as with vllm-router"] is not None


def test_a_criterion_that_was_not_measured_fails_the_check(alone: None, tmp_path: Path) -> None:
    small = ("--only", "pass-through", "--sizes", "2", "--connections", "1", "--streams", "", *SMALL)
    assert bench(tmp_path, *small).exit_code == 0
    checked = bench(tmp_path, *small, "--check")
    assert checked.exit_code == 1
    assert "open: 480 KB adds at most 1/2" in checked.output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--sizes", "two"), "--sizes 'two' is not a list of numbers"),
        (("--sizes", "0"), "--sizes '0' is not a list of numbers above 0"),
        (("--sizes", "nan"), "--sizes 'nan' is not a list of numbers above 0"),
        (("--sizes", "1e12"), "--sizes '1e12' is not a list of numbers above 0, up to 1,000,000"),
        (("--stream-seconds", "inf"), "--stream-seconds"),
        (("--rate", "nan"), "--rate"),
        (("--connections", "1.5"), "--connections '1.5': whole numbers are wanted"),
        (("--connections", "1000000"), "raise the hard limit"),
        (("--only", "nginx"), "--only nginx: no such contender"),
        (("--peers", "/nowhere"), "--peers /nowhere: no bin/vllm-router there"),
    ],
)
def test_bad_options_are_explained(alone: None, tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    result = bench(tmp_path, *options, *SMALL)
    assert result.exit_code == 2, result.output
    assert told in result.output
    assert "Traceback" not in result.output


def test_a_router_that_does_not_start_is_told_with_its_last_words(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(field, "PATHS", {**field.PATHS, "antiphon": "sideways"})
    result = bench(tmp_path, "--only", "antiphon", *SMALL)
    assert result.exit_code == 2, result.output
    assert "antiphon ended with exit code 2. Its log ends with:" in result.output
    assert "sideways" in result.output


def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    output = tmp_path / "output"
    process = foreground(
        *("bench", "router", "--only", "antiphon", "--out", str(tmp_path), "--seconds", "60"), output=output
    )
    try:
        end = time.monotonic() + PATIENCE
        while "2 KB, whole, alone" not in output.read_text():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < end, output.read_text()
            time.sleep(0.05)
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) >= 4  # engines and router, each with its guard
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    finally:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(started, timeout=PATIENCE)
    assert alive == []
