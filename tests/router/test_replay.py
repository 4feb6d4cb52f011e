"""Recorded agent sessions on simulated engines: append, reuse and leases against each alone.

Set ``ANTIPHON_TRACES`` to a folder to replay that one, too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from antiphon_server.simulator import Settings
from rig.replay import SPEED, Fleet, Outcome, truth
from rig.traces import Session, flatten, sessions

SLOWDOWN = 1.1
"""By which appends may slow other streams down."""


@dataclass(frozen=True)
class Case:
    """``copies`` of each session, all begun within ``window`` seconds. ``capacity``: blocks of a decode
    engine."""

    folder: Path
    copies: int
    window: float
    capacity: int


OWN = Case(Path(__file__).parent / "traces", copies=3, window=60.0, capacity=8192)
OTHER = os.environ.get("ANTIPHON_TRACES")
CASES = [OWN, *([Case(Path(OTHER), copies=1, window=200.0, capacity=16384)] if OTHER else [])]


@dataclass(frozen=True)
class Compared:
    """The same sessions, three times."""

    sessions: Sequence[Session]
    cold: Outcome
    reuse: Outcome
    auto: Outcome

    @property
    def outcomes(self) -> dict[str, Outcome]:
        return {"cold": self.cold, "reuse": self.reuse, "auto": self.auto}


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.folder.name)
def compared(request: pytest.FixtureRequest) -> Compared:
    case: Case = request.param
    played = sessions(case.folder, case.copies)
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
