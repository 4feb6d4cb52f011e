"""The simulator against the full replay: the same sessions, once through the real router over simulated
engines that hold KV and speak HTTP, once as lengths and times only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from antiphon_server.bench.simulate.policy import Path as TurnPath
from antiphon_server.bench.simulate.policy import Policy
from antiphon_server.bench.simulate.run import Result, simulate
from antiphon_server.traces.read import read
from rig.modelled import MODEL, fleet, lanes
from rig.replay import DECODE_BLOCKS, Fleet, Outcome
from rig.traces import sessions

DATA = Path(__file__).parents[2] / "data"
CODING = ("0021", "0036", "0167", "0228", "0371", "0427", "0505")
TALK = 7
WINDOW = 60.0
PREFILL_BLOCKS = 16384
"""So many that prefill's cache loses little: which conversations a cache that is just too small loses hangs
on the order of a few events, and one that is lost costs seconds."""
WITHIN = 0.15
"""Relative error of a mean TTFT."""
POLICIES: dict[str, tuple[tuple[TurnPath, ...], Mapping[str, Any]]] = {
    "cold": (("cold",), {}),
    "reuse": (("reuse",), {"calibrate": False}),
    "auto": (("cold", "reuse", "append"), {"append_slowdown": 1.1}),
}


@dataclass(frozen=True)
class Both:
    full: Outcome
    modelled: Result

    @property
    def mean(self) -> float:
        found = self.modelled.ttft["all"]
        assert found is not None
        return found.mean


@pytest.fixture(scope="module")
def both() -> dict[str, Both]:
    told = read([DATA / "tau_bench"])
    coding = read([DATA / "coding_agents" / f"trace_{number}.json" for number in CODING])
    played = sessions([replace(told, conversations=(told.conversations[TALK],)), coding], 2)
    engines = Fleet(prefill={"capacity": PREFILL_BLOCKS})
    found: dict[str, Both] = {}
    for name, (paths, settings) in POLICIES.items():
        full = engines.replay(played, WINDOW, paths=list(paths), **settings)
        modelled = simulate(
            lanes(played, full, WINDOW, engines.seed),
            MODEL,
            fleet(PREFILL_BLOCKS, DECODE_BLOCKS),
            Policy(name, name, paths),
            settings={"probe_interval": 30.0, **settings},
        )
        found[name] = Both(full, modelled)
    return found


def test_means_agree(both: dict[str, Both]) -> None:
    for name, pair in both.items():
        print(f"{name}: TTFT mean {pair.full.mean:.3f} s in full, {pair.mean:.3f} s modelled")
        assert pair.mean == pytest.approx(pair.full.mean, rel=WITHIN), name


def test_policies_rank_the_same(both: dict[str, Both]) -> None:
    by_full = sorted(both, key=lambda name: both[name].full.mean)
    assert by_full == sorted(both, key=lambda name: both[name].mean) == ["auto", "reuse", "cold"]


def test_paths_are_taken_as_often(both: dict[str, Both]) -> None:
    for name, pair in both.items():
        for path in ("append", "reuse", "cold"):
            assert pair.modelled.share(path) == pytest.approx(pair.full.share(path), abs=0.06), (name, path)


def test_streams_are_as_fast(both: dict[str, Both]) -> None:
    for pair in both.values():
        assert pair.modelled.pace is not None
        assert pair.modelled.pace.mean == pytest.approx(pair.full.pace, rel=0.02)


def test_as_much_is_pinned(both: dict[str, Both]) -> None:
    for pair in both.values():
        most = max(pair.full.most) / pair.full.budget[0] / 2
        assert pair.modelled.pinned_most == pytest.approx(most, abs=0.05)
