from __future__ import annotations

import dataclasses
from pathlib import Path

from antiphon_server.bench.sweep.figures import colour, draw
from antiphon_server.bench.sweep.verdict import Limits, verdict
from antiphon_server.bench.timing import Answer
from doubles.sweeps import ARMS, LATER, sweep, with_turn


def test_two_figures_for_each_state_of_the_cache(tmp_path: Path) -> None:
    found = sweep()
    written = draw(found, verdict(found, Limits()), tmp_path / "new")
    names = {
        f"{kind}-{cache}.{form}"
        for kind in ("ttft", "split")
        for cache in ("empty", "warm")
        for form in ("png", "svg")
    }
    assert {path.name for path in written} == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written if path.suffix == ".png")
    assert "<svg" in (tmp_path / "new" / "ttft-warm.svg").read_text()


def test_figure_says_when_answers_differ(tmp_path: Path) -> None:
    wrong = with_turn(sweep(), "reuse", LATER, answer=Answer((9,), "z"))
    # Text in an SVG is drawn; its comments hold the words.
    draw(wrong, verdict(wrong, Limits()), tmp_path)
    text = (tmp_path / "ttft-empty.svg").read_text()
    assert "ANSWERS DIFFER" in text
    assert "answers identical" not in text


def test_arms_are_told_apart() -> None:
    found = dataclasses.replace(sweep(), arms=(*ARMS, "mine", "yours"))
    assert len({colour(found, arm) for arm in found.arms}) == 5
