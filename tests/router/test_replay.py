"""Recorded agent sessions on simulated engines: append, reuse and leases against each alone.

Set ``ANTIPHON_TRACES`` to a folder to replay that one, too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from antiphon_server.bench.replay.script import Script
from antiphon_server.simulator import Settings
from antiphon_server.traces.read import read
from antiphon_server.traces.trace import Trace
from rig.replay import SPEED, Fleet, Outcome, truth
from rig.traces import flatten, sessions

SLOWDOWN = 1.1
"""By which appends may slow other streams down."""


DATA = Path(__file__).parents[1] / "data"
CODING = ("0021", "0036", "0167", "0228", "0371", "0427", "0505")
"""Sessions of a coding agent. 0036, 0228 and 0427 rewrite or compact their history."""
TALK = 7
"""Which of the conversations with tools."""


@dataclass(frozen=True)
class Case:
    """``copies`` of each session, all begun within ``window`` seconds. ``capacity``: blocks of a decode
    engine. ``folder``: of traces; None: our own."""

    folder: Path | None
    copies: int
    window: float
    capacity: int


OWN = Case(None, copies=3, window=60.0, capacity=8192)
OTHER = os.environ.get("ANTIPHON_TRACES")
CASES = [OWN, *([Case(Path(OTHER), copies=1, window=200.0, capacity=16384)] if OTHER else [])]


def traces(folder: Path | None) -> list[Trace]:
    """What is replayed."""
    if folder is not None:
        return [read([folder])]
    told = read([DATA / "tau_bench"])
    talk = replace(told.conversations[TALK], name="airline-0")
    coding = read([DATA / "coding_agents" / f"trace_{number}.json" for number in CODING])
    return [replace(told, conversations=(talk,)), coding]


@dataclass(frozen=True)
class Compared:
    """The same sessions, three times."""

    sessions: Sequence[Script]
    cold: Outcome
    reuse: Outcome
    auto: Outcome

    @property
    def outcomes(self) -> dict[str, Outcome]:
        return {"cold": self.cold, "reuse": self.reuse, "auto": self.auto}


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.folder.name if case.folder else "traces")
def compared(request: pytest.FixtureRequest) -> Compared:
    case: Case = request.param
    played = sessions(traces(case.folder), case.copies)
    fleet = Fleet(decode={"capacity": case.capacity})
    return Compared(
        played,
        cold=fleet.replay(played, case.window, paths=["cold"]),
        reuse=fleet.replay(played, case.window, paths=["reuse"], calibrate=False),
        auto=fleet.replay(played, case.window, append_slowdown=SLOWDOWN),
    )


def test_first_tokens_come_sooner_than_by_any_path_alone(compared: Compared) -> None:
    cold, reuse, auto = compared.cold, compared.reuse, compared.auto
    assert auto.mean < 0.8 * reuse.mean < 0.8 * cold.mean
    assert auto.quantile(0.99) < 0.9 * min(reuse.quantile(0.99), cold.quantile(0.99))
    assert auto.quantile(0.5) < reuse.quantile(0.5) < cold.quantile(0.5)


def test_other_streams_are_not_slowed_down_by_more_than_they_may(compared: Compared) -> None:
    assert compared.auto.pace < compared.cold.pace * (1 + (SLOWDOWN - 1) * 0.8)


def test_pinned_tokens_stay_below_the_budget_at_every_instant(compared: Compared) -> None:
    for outcome in compared.outcomes.values():
        for most, budget in zip(outcome.most, outcome.budget, strict=True):
            assert 0 < most <= budget


def test_answers_are_those_of_full_recomputation(compared: Compared) -> None:
    decode = Settings(role="decode", **SPEED)
    for session in compared.sessions:
        keys = [(session.name, index) for index in range(len(session.turns))]
        exact = [
            tuple(answer) for answer in truth(session, decode, [compared.cold.turns[key] for key in keys])
        ]
        for name, outcome in compared.outcomes.items():
            assert [outcome.turns[key].ids for key in keys] == exact, (name, session.name)


def test_every_way_is_taken(compared: Compared) -> None:
    assert len(compared.auto.turns) == len(list(flatten(compared.sessions)))
    assert compared.cold.share("cold") == 1.0
    assert compared.reuse.share("append") == 0.0
    assert compared.reuse.share("reuse") > 0.5
    assert compared.auto.share("append") > 0.5
    assert compared.auto.share("reuse") > 0.0
