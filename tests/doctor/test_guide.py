"""docs/doctor.md against the code."""

from __future__ import annotations

import json
import re
from dataclasses import fields

import pytest

from antiphon_server.doctor.checks import CHECKS, DECLARED
from antiphon_server.doctor.finding import Check, Examination, Finding, Severity
from antiphon_server.doctor.fleet.checks import FLEET
from antiphon_server.doctor.guide import written
from antiphon_server.doctor.machine.checks import MACHINE
from antiphon_server.doctor.report import Report, as_json
from rig.recipe import ROOT

PAGE = (ROOT / "docs" / "doctor.md").read_text()
ALL = (*DECLARED, *MACHINE, *FLEET)


def test_its_tables_name_every_check_as_it_is() -> None:
    assert written(PAGE) == PAGE, "python -m antiphon_server.doctor.guide docs/doctor.md"


def test_no_two_checks_have_one_word() -> None:
    assert len(CHECKS) == len(ALL)


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.word)
def test_a_check_is_explained_in_a_line(check: Check) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9-]*", check.word)
    assert 10 < len(check.line) < 110
    assert len(check.why) > 10
    assert "\n" not in check.line + check.why


def test_its_json_has_the_fields_that_are_printed() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    shown = json.loads(block)
    first = shown["findings"][0]
    finding = Finding(**{**first, "severity": Severity(first["severity"])})
    told = json.loads(as_json(Report(("fleet.yaml",), Examination((finding,)))))
    assert list(shown) == list(told)
    assert shown["findings"] == told["findings"]
    assert list(shown["findings"][0]) == [field.name for field in fields(Finding)]
    assert finding.why == CHECKS[finding.check].why
    assert (shown["form"], shown["exit_code"], shown["summary"]) == (told["form"], 1, told["summary"])
