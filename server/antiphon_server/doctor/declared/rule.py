"""Rules: a check over what is declared, written beside the words that explain it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from antiphon_server.doctor.declared.declared import Declared
from antiphon_server.doctor.finding import Check, Finding, Severity


@dataclass(frozen=True, slots=True)
class Hit:
    """What a rule found, to be said with its check's reason. ``severity`` None: the check's own."""

    subject: str
    what: str
    remedy: str
    severity: Severity | None = None


Look = Callable[[Declared], Iterable[Hit]]


@dataclass(frozen=True, slots=True)
class Rule:
    """``look`` is pure."""

    check: Check
    look: Look

    def findings(self, declared: Declared) -> Iterator[Finding]:
        """What it finds there."""
        for hit in self.look(declared):
            yield self.check.finding(hit.subject, hit.what, hit.remedy, severity=hit.severity)


def rule(
    word: str, severity: Severity, line: str, why: str, thing: str | None = None
) -> Callable[[Look], Rule]:
    """Make a rule of a function that yields hits. ``line``, ``why`` and ``thing``: see :class:`Check`."""
    return lambda look: Rule(Check(word, severity, line, why, thing), look)
