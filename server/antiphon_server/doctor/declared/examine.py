"""All rules over what is declared."""

from __future__ import annotations

from antiphon_server.doctor.declared.declared import Declared
from antiphon_server.doctor.declared.rule import Rule
from antiphon_server.doctor.declared.rules import alike, efa, engine, exposure, places, routing
from antiphon_server.doctor.finding import Examination, together

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
