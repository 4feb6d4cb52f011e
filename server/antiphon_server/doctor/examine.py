"""All rules over what is declared."""

from __future__ import annotations

from antiphon_server.doctor.declared import Declared
from antiphon_server.doctor.finding import Examination, together
from antiphon_server.doctor.rule import Rule
from antiphon_server.doctor.rules import alike, efa, engine, exposure, places, routing

RULES: tuple[Rule, ...] = (
    *engine.RULES,
    *places.RULES,
    *alike.RULES,
    *efa.RULES,
    *routing.RULES,
    *exposure.RULES,
)


def examine(declared: Declared) -> Examination:
    """What the rules find in it."""
    found = [finding for rule in RULES for finding in rule.findings(declared)]
    checked = frozenset(rule.check.word for rule in RULES) if declared else frozenset()
    return together([Examination((*declared.unread, *found), (), checked)])
