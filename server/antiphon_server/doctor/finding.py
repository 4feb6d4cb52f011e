"""What the doctor says: checks have a word, findings are what a check found, facts are what was seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """``ERROR``: it will fail, or answer wrongly. ``WARNING``: slow, fragile or unsafe. ``NOTE``: to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """0 is the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """``subject``: which engine, router, file or machine. ``what``: names the thing and its value. ``why``:
    what comes of it. ``remedy``: what to do, in the imperative."""

    check: str
    severity: Severity
    subject: str
    what: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.what}: {self.remedy}"


@dataclass(frozen=True, slots=True)
class Check:
    """``word``: its name, for people and for ``--json``. ``line``: what it looks at, one line of the guide's
    table. ``why``: why it matters, said with each of its findings. ``thing``: the flag, variable or key that
    it is about, where it is about one."""

    word: str
    severity: Severity
    line: str
    why: str
    thing: str | None = None

    def finding(
        self,
        subject: str,
        what: str,
        remedy: str,
        *,
        why: str | None = None,
        severity: Severity | None = None,
    ) -> Finding:
        """What this check found."""
        return Finding(self.word, severity or self.severity, subject, what, why or self.why, remedy)


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that was seen and is no fault: a version, a bandwidth, bytes that went over."""

    subject: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Examination:
    """``checked``: words of the checks that were made, whether they found something or not."""

    findings: tuple[Finding, ...] = ()
    facts: tuple[Fact, ...] = ()
    checked: frozenset[str] = field(default_factory=frozenset)


def together(examinations: Iterable[Examination]) -> Examination:
    """All of them as one, the worst findings first; what was found twice is said once."""
    parts = list(examinations)
    findings = dict.fromkeys(finding for part in parts for finding in part.findings)
    return Examination(
        tuple(sorted(findings, key=lambda finding: finding.severity.rank)),
        tuple(fact for part in parts for fact in part.facts),
        frozenset().union(*(part.checked for part in parts)),
    )
