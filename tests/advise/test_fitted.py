"""Engines as they were measured."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon_server.advise.fitted import FitError, Leg, fit, from_log
from antiphon_server.advise.hardware import Given, Hardware, hardware
from antiphon_server.advise.measured import from_sweep
from antiphon_server.advise.turns import turns_of
from antiphon_server.counters import Counters
from antiphon_server.traces.trace import Call
from doubles.sweeps import LATER, saved, turn
from doubles.traffic import traffic

TRUE = Hardware("true", 4096, 0.05, 1e-4, 2e-8, 0.004, 4e-6)


def _legs() -> list[Leg]:
    legs = []
    for context, pulled in itertools.product((500, 1000, 2000, 4000, 8000, 16000), (False, True)):
        new = 300 if pulled else context
        moved = context - new
        legs.append(Leg(new, context, moved, TRUE.prefill(new, context) + TRUE.pulling(moved)))
    return legs * 2


def test_rates_are_found_again() -> None:
    found = fit(_legs(), "the sweep", 4096)
    assert found.error < 0.02
    made = hardware(Given("tiny", "cpu"), found)
    for new, context in ((200, 300), (300, 12_000), (12_000, 12_000)):
        assert made.prefill(new, context) == pytest.approx(TRUE.prefill(new, context), rel=0.05)
    assert made.pulling(10_000) == pytest.approx(TRUE.pulling(10_000), rel=0.15)
    assert "the sweep, 24 legs, median error" in dict(made.sources)["computing"]


def test_what_is_given_wins_over_what_was_measured() -> None:
    found = fit(_legs(), "the sweep", 4096)
    made = hardware(Given("tiny", "cpu", kv_bytes=1000, bandwidth=2.0, prefill_rate=50.0), found)
    assert [made.token, made.kv_bytes, made.gigabytes] == pytest.approx([1 / 50, 1000, 2.0])


def test_an_unknown_model_does_with_a_sweep() -> None:
    made = hardware(Given(kv_bytes=4096), fit(_legs(), "the sweep", None))
    assert made.token == pytest.approx(TRUE.token, rel=0.1)


def test_sweeps_are_read(tmp_path: Path) -> None:
    turns = [
        replace(
            turn("off", replace(LATER, length=leg.context)),
            prefill=Counters(
                received=leg.pulled * 4096.0, busy=leg.seconds, computed=leg.new, pulled=leg.pulled
            ),
        )
        for leg in _legs()
    ]
    appended = replace(turns[0], prefill=Counters())
    assert from_sweep(saved([*turns, appended], tmp_path)) == fit(_legs(), "the sweep", 4096)


def test_a_sweep_without_prefill_legs_tells_nothing(tmp_path: Path) -> None:
    path = saved([replace(turn("off", LATER), prefill=Counters())], tmp_path)
    with pytest.raises(FitError, match="has 0 usable prefill legs, 12 are needed"):
        from_sweep(path)


def test_what_is_no_sweep_is_named_with_the_option(tmp_path: Path) -> None:
    with pytest.raises(FitError, match=r"--fit .*none\.json cannot be read: No such file"):
        from_sweep(tmp_path / "none.json")


def test_logs_of_the_router_tell_rates_of_cold_turns() -> None:
    calls = [
        Call(tokens, 10, ttft=TRUE.prefill(tokens, tokens), path="cold")
        for tokens in (500, 900, 2000, 5000, 9000, 16_000) * 3
    ]
    odd = [Call(9000, 10, ttft=0.01, path="append"), Call(9000, 10, path="cold")]
    found = from_log(turns_of(traffic(calls, odd)))
    assert found.legs == 18
    assert found.error < 0.02
    assert found.pull_token is None
    made = hardware(Given("qwen3-32b", "p5en"), found)
    assert made.pulling(2000) == hardware(Given("qwen3-32b", "p5en")).pulling(2000)  # still the announced one
    assert made.longest == 16_000


def test_one_length_tells_nothing() -> None:
    with pytest.raises(FitError, match="12 are needed"):
        from_log(turns_of(traffic([Call(500, 1, ttft=1.0, path="cold")] * 11)))
