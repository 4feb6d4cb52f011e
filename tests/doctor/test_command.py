"""``antiphon doctor`` as it is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from antiphon_server.cli import app
from antiphon_server.doctor import report
from antiphon_server.doctor.checks import CHECKS as KNOWN
from antiphon_server.doctor.finding import Check, Examination, Fact, Severity, together
from antiphon_server.doctor.fleet.target import FleetTarget
from doctor import goods
from doctor.goods import write

CHECKS = {
    severity: Check(f"{severity}-check", severity, "a line", "because of this") for severity in Severity
}
FINDINGS = tuple(CHECKS[s].finding("here", f"a {s}", "mend it") for s in reversed(Severity))


def call(*words: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, ["doctor", *words], env=env)


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    """What ``antiphon up --print`` shows, to be spoilt."""
    return write(goods.up("cpu").files, tmp_path) / "stack.sh"


def spoil(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_nothing_found_ends_with_0(stack: Path) -> None:
    ran = call(str(stack), "--strict")
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert ran.stdout.startswith("Nothing found by ")
    assert ran.stdout.endswith(" checks of stack.sh.\n")


def test_an_error_ends_with_1_and_says_what_why_and_how_to_mend(stack: Path) -> None:
    spoil(stack, '"kv_role"', '"engine_id": "p0", "kv_role"')
    ran = call(str(stack))
    assert ran.exit_code == 1
    assert ran.stdout.splitlines()[:4] == [
        "ERROR    engine-id  stack.sh: prefill-0",
        "  what   engine_id is fixed to 'p0'",
        f"  why    {KNOWN['engine-id'].why}",
        "  mend   remove it: each start draws a new one",
    ]
    assert ran.stdout.splitlines()[-1].startswith("1 error by ")


def test_a_warning_ends_with_1_only_when_strict(stack: Path) -> None:
    spoil(stack, "KEEP_ALIVE=600", "KEEP_ALIVE=30")
    assert call(str(stack)).exit_code == 0
    assert call(str(stack), "--strict").exit_code == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("no-such.yaml",), "no-such.yaml is not there"),
        (("",), "TARGET is empty"),
        ((" ", "--machine"), "TARGET is empty"),
        (("http://127.0.0.1:8000",), "http://127.0.0.1:8000 is a URL: name what runs there by --router"),
        (("--router", "localhost:8000"), "'localhost:8000' is not http"),
        (("--prefill", "ftp://a"), "--prefill 'ftp://a' is not http"),
        (("--router", ""), "--router is empty"),
        (("--machine", "--decode", " "), "--decode is empty"),
        (("--prefill", ""), "--prefill is empty"),
        (("--prefill", "http://a:99999"), "--prefill 'http://a:99999' is not http"),
        (("--decode", "http://[::1"), "--decode 'http://[::1' is not http"),
        (("--decode", "http://a:0"), "--decode 'http://a:0' is not http"),
        (("--router", "http://a?b"), "--router 'http://a?b' is not http"),
        (("--router", "http://r", "--timeout", "nan"), "3600"),
    ],
)
def test_what_it_cannot_look_at_ends_with_2(words: tuple[str, ...], told: str) -> None:
    ran = call(*words)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert told in ran.stderr


def test_passwords_and_keys_that_cannot_be_sent_are_refused_untold() -> None:
    ran = call("--router", "http://me:secret-one@r")
    assert (ran.exit_code, "--router names a user" in ran.stderr) == (2, True)
    assert "secret-one" not in ran.output
    ran = call("--router", "http://127.0.0.1:9", env={"ANTIPHON_API_KEY": "secret-one\n"})
    assert (ran.exit_code, "ANTIPHON_API_KEY holds" in ran.stderr) == (2, True)
    assert "secret-one" not in ran.output


def test_json_has_the_form_that_the_guide_shows(stack: Path) -> None:
    spoil(stack, "KEEP_ALIVE=600", "KEEP_ALIVE=30")
    ran = call(str(stack), "--json", "--strict")
    told: dict[str, Any] = json.loads(ran.stdout)
    assert set(told) == {
        "form",
        "antiphon",
        "looked_at",
        "exit_code",
        "summary",
        "findings",
        "facts",
        "checked",
    }
    assert (told["form"], told["looked_at"], told["exit_code"]) == (1, ["stack.sh"], 1)
    assert told["summary"] == {"error": 0, "warning": 1, "note": 0}
    (found,) = told["findings"]
    assert set(found) == {"check", "severity", "subject", "what", "why", "remedy"}
    assert (found["check"], found["severity"]) == ("keep-alive", "warning")
    assert found["check"] in told["checked"]
    assert ran.exit_code == 1


@pytest.mark.parametrize("words", [("no-such.yaml",), ("--router", "")], ids=" ".join)
def test_json_says_what_could_not_be_looked_at(words: tuple[str, ...]) -> None:
    ran = call(*words, "--json")
    told = json.loads(ran.stdout)
    assert ran.exit_code == told["exit_code"] == 2
    assert set(told) == {"form", "antiphon", "exit_code", "error"}
    assert ran.stderr == told["error"] + "\n"


def test_without_targets_this_machine_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def examine(environ: object, *, preset: object) -> Examination:
        asked.append(preset)
        return Examination(FINDINGS[-1:])

    monkeypatch.setattr("antiphon_server.doctor.machine.examine.examine", examine)
    assert call(env={"ANTIPHON_ENGINE_PRESET": "efa"}).exit_code == 1
    assert call("--preset", "gpu", "--machine").exit_code == 1
    assert asked == ["efa", "gpu"]


def test_urls_are_a_running_fleet(monkeypatch: pytest.MonkeyPatch, stack: Path) -> None:
    asked: list[FleetTarget] = []

    def examine(target: FleetTarget) -> Examination:
        asked.append(target)
        return Examination(FINDINGS[:1])

    monkeypatch.setattr("antiphon_server.doctor.fleet.examine.examine", examine)
    words = [
        "--router",
        "http://r:8000/",
        "--prefill",
        "http://p:1",
        "--prefill",
        "http://q:1",
        "--decode",
        "http://d:1",
    ]
    env = {"ANTIPHON_ENGINE_KEY": "e", "ANTIPHON_API_KEY": "c", "ANTIPHON_ADMIN_KEY": "a"}
    ran = call(str(stack), *words, "--no-probe", "--timeout", "2", env=env)
    assert ran.exit_code == 0
    assert asked == [
        FleetTarget("http://r:8000", ("http://p:1", "http://q:1"), ("http://d:1",), "e", "c", "a", False, 2.0)
    ]
    assert ran.stdout.endswith(" checks of stack.sh, the running fleet.\n")


# --- the report


def shown(examination: Examination, *, terminal: bool = False) -> str:
    console = Console(force_terminal=terminal, width=60, color_system="standard" if terminal else None)
    with console.capture() as capture:
        report.show(report.Report(("a", "b"), examination), console)
    return capture.get()


def test_the_worst_is_said_first_and_all_is_summed_up() -> None:
    text = shown(together([Examination(FINDINGS[:1], checked=frozenset({"x"})), Examination(FINDINGS[1:])]))
    words = [line.split()[0] for line in text.splitlines() if line and not line.startswith(" ")]
    assert words == ["ERROR", "WARNING", "NOTE", "1"]
    assert text.splitlines()[-1] == "1 error, 1 warning, 1 note by 1 checks of a, b."


def test_the_same_finding_of_several_engines_is_said_once() -> None:
    check = CHECKS[Severity.ERROR]
    text = shown(Examination(tuple(check.finding(name, "x", "y") for name in ("p0", "p1"))))
    assert text.splitlines()[0] == "ERROR    error-check  p0, p1"
    assert text.splitlines()[-1].startswith("2 errors")


def test_facts_are_aligned_and_come_before_findings() -> None:
    facts = (Fact("fleet", "round trip", "47 blocks"), Fact("p", "vLLM", "0.32.0"))
    assert shown(Examination(facts=facts)).splitlines()[:2] == [
        "fleet  round trip  47 blocks",
        "p      vLLM        0.32.0",
    ]


def test_a_terminal_gets_colours_and_folded_lines_a_file_whole_ones() -> None:
    found = Examination((CHECKS[Severity.ERROR].finding("here", "word " * 40, "mend it"),))
    assert "\x1b[" in shown(found, terminal=True)
    assert max(map(len, shown(found, terminal=True).splitlines())) < 60 + 30  # with escape sequences
    assert "\x1b[" not in shown(found)
    assert max(map(len, shown(found).splitlines())) > 200
