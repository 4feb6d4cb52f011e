"""The command as a user runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from antiphon_server.advise.instances import INSTANCES
from antiphon_server.advise.models import MODELS
from antiphon_server.advise.reasons import Cause
from antiphon_server.advise.verdict import Verdict
from antiphon_server.cli import app

DATA = Path(__file__).parent.parent / "data"
DOC = DATA.parent.parent / "docs" / "adviser.md"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["advise", *arguments], env={"COLUMNS": "120", "NO_COLOR": "1"})


def test_the_guide_shows_what_the_terminal_does(here: Path) -> None:
    shown = DOC.read_text().partition("```text\n")[2].partition("\n```")[0].splitlines()
    assert shown[0] == "$ antiphon advise tests/data/coding_agents --model qwen3-32b --instance p5en"
    ran = _run(str(DATA / "coding_agents"), "--model", "qwen3-32b", "--instance", "p5en")
    assert ran.exit_code == 0
    assert [line.rstrip() for line in ran.output.splitlines()] == shown[1:]
    assert (here / "out" / "advice.html").read_text().startswith("<!doctype html>")


def test_figures_as_json(here: Path) -> None:
    ran = _run(str(DATA / "coding_agents"), "--json", "figures/advice.json", "--report", "r.html")
    assert (ran.exit_code, "report: r.html   figures: figures/advice.json" in ran.output) == (0, True)
    found = json.loads((here / "figures" / "advice.json").read_text())
    assert found["judgement"]["verdict"] == "turn it on with care"
    assert found["repetition"]["tokens"] == 13_314_029


def test_the_guide_names_every_reason_verdict_model_and_instance() -> None:
    text = DOC.read_text()
    for verdict in Verdict:
        assert f"| {verdict} |" in text
    reasons = {
        word.strip() for line in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE) for word in line.split(",")
    }
    assert {str(cause) for cause in Cause} - {Cause.GAIN} <= reasons | {"small gain"}
    for name in (*MODELS, *INSTANCES):
        assert f"`{name}`" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.jsonl"], "none.jsonl: there is no such file or folder"),
        (["empty.jsonl"], "empty.jsonl: nothing is in it: log calls into it, or name another file"),
        (["broken.jsonl"], "broken.jsonl"),
        (["good.jsonl", "--format", "foo"], "there is no format 'foo'"),
        (["good.jsonl", "--model", "foo"], "--model 'foo' is not known"),
        (["good.jsonl", "--instance", "foo"], "--instance 'foo' is not known"),
        (["good.jsonl", "--kv-bytes-per-token", "5"], "give --prefill-rate"),
        (["good.jsonl", "--fit", "none.json"], "--fit none.json cannot be read"),
        (["good.jsonl", "--fit", "log"], "12 are needed"),
        (["good.jsonl", "--report", "file/r.html"], "--report file/r.html: nothing can be written there"),
        (["good.jsonl", "--report", "/proc/o.html"], "--report /proc/o.html: nothing can be written there"),
        (["good.jsonl", "--report", "."], "--report .: this is a folder: name a file in it"),
        (["good.jsonl", "--report", ""], "this is a folder: name a file in it"),
        (["good.jsonl", "--json", "/proc/o.json"], "--json /proc/o.json: nothing can be written there"),
        (["good.jsonl", "--report", "o", "--json", "./o"], "both are one file: name two"),
        (["good.jsonl", "--json", "good.jsonl"], "--json good.jsonl: this is one of the logs"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(arguments: list[str], said: str, here: Path) -> None:
    (here / "file").write_text("")
    (here / "empty.jsonl").write_text("")
    (here / "broken.jsonl").write_text('{"id": \nnonsense\n{]\n')
    good = (DATA / "tau_bench" / "airline.jsonl").read_text()
    (here / "good.jsonl").write_text(good)
    ran = _run(*arguments)
    assert ran.exit_code == 2
    assert said in ran.output
    assert len(ran.output.strip().splitlines()) == 1
    assert "Traceback" not in ran.output
    assert ran.exception is None or isinstance(ran.exception, SystemExit)


def test_many_conversations_are_judged_within_memory_for_few(here: Path) -> None:
    # Requests of 300 conversations, side by side, as an agent's log has them: 3,000 calls.
    session = json.loads((DATA / "coding_agents" / "trace_0505.json").read_text())
    with (here / "log.jsonl").open("w") as log:
        for number in range(300):
            log.write(json.dumps(session | {"id": f"s{number}"}) + "\n")
    ran = _run("log.jsonl")
    assert ran.exit_code == 0
    assert "2,400 calls in 300 conversations" in ran.output


@pytest.mark.parametrize("value", ["inf", "1e400", "nan"])
@pytest.mark.parametrize(
    "option", ["--gap", "--keep", "--conversations", "--bandwidth", "--prefill-rate", "--bytes-per-token"]
)
def test_numbers_are_finite(option: str, value: str, here: Path) -> None:
    ran = _run(str(DATA / "tau_bench"), option, value)
    assert (ran.exit_code, option in ran.output, "Traceback" in ran.output) == (2, True, False)


def test_what_a_token_weighs_has_an_end(here: Path) -> None:
    ran = _run(str(DATA / "tau_bench"), "--kv-bytes-per-token", "9" * 30)
    assert (ran.exit_code, "--kv-bytes-per-token" in ran.output) == (2, True)


def test_the_summary_is_told_though_the_report_cannot_be_kept(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    ran = _run(str(DATA / "coding_agents"))
    assert ran.exit_code == 2
    assert "Turn it on with care" in ran.output
    assert "No space left on device" in ran.output
