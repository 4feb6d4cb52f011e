"""Rates fitted to published figures and to sweeps."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon_server.advise.hardware import Given, hardware
from antiphon_server.bench.simulate.announcement import PUBLISHED
from antiphon_server.bench.simulate.fit_published import PARAMETERS, fit
from antiphon_server.bench.simulate.fit_sweep import fit as fit_sweep
from antiphon_server.bench.simulate.presets import PRESETS, preset
from antiphon_server.bench.simulate.published import FLEET, lanes, point, with_errors
from antiphon_server.bench.simulate.rates import RateModel
from antiphon_server.bench.simulate.run import simulate
from antiphon_server.bench.sweep.files import SweepError
from antiphon_server.bench.sweep.record import Turn
from antiphon_server.bench.timing import Outcome, Timed
from antiphon_server.counters import Counters
from doubles.sweeps import ANSWER, LATER, saved


@pytest.mark.parametrize("name", PRESETS)
def test_published_ttft_is_met_within_a_tenth_at_both_ends(name: str) -> None:
    model = with_errors(preset(name), PUBLISHED[name])
    ttft = {figure: found / given - 1 for figure, given, found in model.errors if figure.startswith("TTFT")}
    assert len(ttft) == 4
    assert max(map(abs, ttft.values())) < 0.1
    assert len(model.errors) == 10
    assert model.worst_error < 0.25  # published prefill times do not agree with TTFT


@pytest.mark.parametrize(("name", "until"), [("qwen3-32b-p5en", 24_000), ("glm-5-fp8-p5en", 16_000)])
def test_ttft_grows_with_every_published_length_and_so_does_the_gain_but_for_glm_5s_end(
    name: str, until: int
) -> None:
    published = PUBLISHED[name]
    points = [point(preset(name), length) for length in published.lengths]
    means = [(p.off.ttft["all"], p.on.ttft["all"]) for p in points]
    off, on = ([getattr(pair[side], "mean", 0.0) for pair in means] for side in (0, 1))
    assert off == sorted(off)
    assert on == sorted(on)
    gains = [a / b for a, b in zip(off, on, strict=True)]
    rising = published.lengths.index(until) + 1
    assert gains[:rising] == sorted(gains[:rising])
    assert all(gain > gains[rising - 2] for gain in gains[rising:])


def test_the_method_is_the_announcements() -> None:
    prompts = [turn.prompt for lane in lanes(2000) for c in lane.conversations for turn in c.turns]
    assert (min(prompts), max(prompts)) == (2150, 2150 + 9 * 450)
    found = simulate(lanes(2000), preset("glm-5-fp8-p5en"), FLEET, "proxy")
    assert found.local == 0
    assert found.share("cold") == pytest.approx(0.1)  # first turns


@pytest.mark.parametrize("name", PRESETS)
def test_a_lone_turn_takes_as_long_by_the_advisers_rates(name: str) -> None:
    rates, published = preset(name), PUBLISHED[name]
    engine = hardware(Given(published.model, published.instance))
    for tokens in (500, 24_000, 200_000):
        leg = rates.prefill + rates.compute(tokens, 0) + rates.step
        assert engine.prefill(tokens, tokens) == pytest.approx(leg)
        assert engine.computing(500, tokens) == pytest.approx(rates.compute(500, tokens - 500))
        assert engine.pulling(tokens) == pytest.approx(rates.pulling(tokens))


def test_attention_stays_below_what_the_gpus_can_compute() -> None:
    # 4 x 64 layers x 64 heads x 128 operations for each pair of tokens; eight GPUs of 989 TFLOP/s.
    seconds = preset("qwen3-32b-p5en").attention / 1000
    assert 0.3 < 4 * 64 * 64 * 128 / seconds / (8 * 989e12) < 0.75


def test_presets_are_what_a_fit_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "qwen3-32b-p5en"
    again = with_errors(preset(name), PUBLISHED[name])
    monkeypatch.setattr("antiphon_server.bench.simulate.fit_published._ROUNDS", 1)
    monkeypatch.setattr(
        "antiphon_server.bench.simulate.fit_published._START",
        tuple(getattr(again, parameter) for parameter in PARAMETERS),
    )
    found = fit(name, PUBLISHED[name])
    for (figure, _, before), (_, _, after) in zip(again.errors, found.errors, strict=True):
        assert after == pytest.approx(before, rel=0.05), figure


TRUE = RateModel(
    "truth",
    0.03,
    2e-4,
    attention=4e-6,
    step=0.02,
    chunk=2048,
    transfer=0.01,
    transfer_token=3e-6,
    pull=0.02,
    pull_token=1e-6,
    hand_over=0.005,
    tokenize=2e-6,
    bytes_per_token=4096,
)


def turn(path: str, prompt: int, held: int, source: random.Random) -> Turn:
    """As a sweep tells of one on engines of :data:`TRUE`, with 2 % of noise."""
    computed = prompt if path == "cold" else prompt - held
    pulled = held if path == "reuse" else 0
    handed = 0 if path == "append" else prompt - 1
    seconds = TRUE.prefill + TRUE.compute(computed, prompt - computed) + TRUE.tokenize * prompt + TRUE.step
    receiving = TRUE.transfer + TRUE.transfer_token * pulled if pulled else 0.0
    if pulled:
        seconds += TRUE.pulling(pulled)
    if handed:
        seconds += TRUE.handing_over(handed)
    seconds *= source.uniform(0.98, 1.02)
    timed = Timed(seconds, 1.0, prompt, "", Outcome(path), ANSWER, times=(seconds, seconds + 0.02))
    place = replace(LATER, length=prompt)
    if path == "append":
        return Turn(path, place, timed, Counters(), Counters(computed=computed))
    own = Counters(computed=computed, pulled=pulled, receiving=receiving, received=4096 * pulled)
    return Turn(path, place, timed, own, Counters(computed=1, pulled=handed))


@pytest.fixture
def turns() -> list[Turn]:
    source = random.Random(1)
    return [
        turn(path, prompt, prompt - new, source)
        for path in ("cold", "reuse", "append")
        for prompt in (1000, 2000, 4000, 8000, 16000)
        for new in (100, 400, 900)
        for _ in range(3)
    ]


def test_a_sweep_gives_its_engines_rates_back(turns: list[Turn], tmp_path: Path) -> None:
    found = fit_sweep(saved(turns, tmp_path))
    assert found.step == pytest.approx(TRUE.step)
    assert found.bytes_per_token == 4096
    assert found.pulling(8000) == pytest.approx(TRUE.pulling(8000), rel=0.1)
    assert found.compute(4000, 4000) == pytest.approx(TRUE.compute(4000, 4000), rel=0.05)
    assert len(found.errors) == 15
    assert found.worst_error < 0.05


def test_a_fit_that_does_not_fit_says_so(turns: list[Turn], tmp_path: Path) -> None:
    odd = [
        replace(each, timed=replace(each.timed, ttft=3 * each.timed.ttft))
        if (each.arm, each.place.length) == ("reuse", 4000)
        else each
        for each in turns
    ]
    assert fit_sweep(saved(odd, tmp_path)).worst_error > 0.3


def test_a_sweep_of_few_turns_is_refused(turns: list[Turn], tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="has 7 turns: a fit needs 8 or more"):
        fit_sweep(saved(turns[:7], tmp_path))


def test_presets_have_names() -> None:
    with pytest.raises(ValueError, match="--model 'llama' has no rates: choose from qwen3-32b-p5en"):
        preset("llama")


def test_errors_are_relative() -> None:
    model = replace(TRUE, errors=(("a", 1.0, 1.1), ("b", 2.0, 1.6)))
    assert model.worst_error == pytest.approx(0.2)
