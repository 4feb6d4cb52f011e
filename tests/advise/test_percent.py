"""A share that is not all is not told as all."""

from __future__ import annotations

import pytest

from antiphon_server.advise.advice import Asked, advise
from antiphon_server.advise.answers import answers
from antiphon_server.advise.hardware import Given
from antiphon_server.advise.page import page
from antiphon_server.advise.percent import percent
from doubles.traffic import growing, traffic


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.0, "0%"),
        (0.994, "99%"),
        (0.9949, "99%"),
        (0.995, "99.5%"),
        (0.9967, "99.6%"),
        (0.99999, "99.9%"),
        (1 - 1e-12, "100%"),  # sums of floats
        (1.0, "100%"),
        (-0.3, "-30%"),
        (1.204, "120%"),
    ],
)
def test_all_is_said_only_of_all(share: float, said: str) -> None:
    assert percent(share) == said


def test_nearly_all_that_repeats_is_told_so_everywhere() -> None:
    # 100,010 of 100,210 tokens repeat, and one of 300 turns comes back after two hours.
    pairs = [
        growing(2, start=100_000, new=200, answer=10, gap=7200.0 if i == 0 else 10.0) for i in range(300)
    ]
    found = advise(traffic(*pairs), Asked(Given("qwen3-32b", "p5en")))
    assert found.repetition.share == pytest.approx(0.998, abs=1e-4)
    repeats, _, kept, _ = answers(found)
    assert repeats.text[0].startswith("99.8% of the prompt tokens")
    assert repeats.table is not None
    assert [row[3] for row in repeats.table.rows] == ["0%", "99.8%"]
    assert kept.table is not None
    assert {row[1] for row in kept.table.rows} == {"99.6%"}
    assert (
        "finds 99.6% of the tokens that repeat; 3600 s would find 99.6%" in found.settings.router[1].because
    )
    html = page(found)
    assert "<dd>99.8%<small>of later prompts" in html
    assert "Line: 99.6% of what repeats has come back" in html
