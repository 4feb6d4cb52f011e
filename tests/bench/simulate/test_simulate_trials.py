"""Appends whose rates were learnt while decode was slow come back; trials of a slow one are few."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from antiphon_server.bench.simulate import run as runs
from antiphon_server.bench.simulate.fleet import Fleet
from antiphon_server.bench.simulate.presets import preset
from antiphon_server.bench.simulate.router import Router
from antiphon_server.bench.simulate.served import Served
from antiphon_server.bench.simulate.warm import calibrate
from antiphon_server.bench.simulate.workload import CODING_AGENT
from antiphon_server.router.turn.decision import Decision

AGENTS = replace(CODING_AGENT, turns=32, window=20.0)
TIMES = 10.0
"""By which decode was slower while it was measured."""
WITHIN = 120
"""Turns."""


def turns(patch: pytest.MonkeyPatch, times: float, *, ever: bool = False) -> list[Served]:
    """In the order in which they ended, where calibration met decode so much slower. ``ever``: later turns
    as well."""
    seen: list[Served] = []
    serve, saw_append = Router.serve, Decision.saw_append

    async def slow(router: Router) -> None:
        def saw(self: Decision, *args: Any, seconds: float, **named: Any) -> None:
            saw_append(self, *args, seconds=times * seconds, **named)

        patch.setattr(Decision, "saw_append", saw)
        await calibrate(router)
        if not ever:
            patch.setattr(Decision, "saw_append", saw_append)
        seen.clear()

    async def watched(self: Router, *args: Any, **named: Any) -> Served:
        turn = await serve(self, *args, **named)
        seen.append(turn)
        return turn

    patch.setattr(runs, "calibrate", slow)
    patch.setattr(Router, "serve", watched)
    runs.simulate(AGENTS.lanes(8, 2), preset("qwen3-32b-p5en"), Fleet(1, 1), "auto")
    return seen


def appended(found: list[Served]) -> int:
    return sum(turn.path == "append" for turn in found)


def test_appends_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        usual = turns(patch, 1.0)
    trapped = turns(monkeypatch, TIMES)
    assert len(usual) == len(trapped) > 2 * WITHIN
    assert appended(usual[:WITHIN]) > appended(trapped[:WITHIN])
    assert appended(trapped[WITHIN:]) > 0.9 * appended(usual[WITHIN:])


def test_an_engine_that_stays_slow_is_seldom_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    found = turns(monkeypatch, TIMES, ever=True)
    assert 0 < appended(found) < 0.05 * len(found)
