"""What is checked of declared fleets. Those over engines alone are light, so that ``antiphon up`` asks them
before it starts; those over routers read the router's settings and wait for their import."""

from __future__ import annotations

from collections.abc import Iterable

from antiphon_server.doctor.declared import Declared
from antiphon_server.doctor.finding import Examination, together
from antiphon_server.doctor.rule import Rule
from antiphon_server.doctor.rules import alike, efa, engine, exposure, places, routing

ENGINE_RULES: tuple[Rule, ...] = (*engine.RULES, *places.RULES, *alike.RULES, *efa.RULES)
RULES: tuple[Rule, ...] = (*ENGINE_RULES, *routing.RULES, *exposure.RULES)


def examine(declared: Declared, rules: Iterable[Rule] = RULES) -> Examination:
    """What the rules find in it."""
    asked = tuple(rules)
    found = [finding for one in asked for finding in one.findings(declared)]
    checked = frozenset(one.check.word for one in asked) if declared else frozenset()
    return together([Examination((*declared.unread, *found), (), checked)])
