"""What a router remembers of very many conversations, measured in a process of its own."""

from __future__ import annotations

from antiphon_server.bench.overhead.memory import grown

PER_CONVERSATION = 400e6 / 200_000
SAMPLE = 25_000
"""An eighth: the tables of 200,000 are as full as those of a power of two less."""


def test_two_hundred_thousand_conversations_take_less_than_400_mb() -> None:
    assert grown(SAMPLE, SAMPLE)[SAMPLE] < SAMPLE * PER_CONVERSATION


def test_memory_is_bounded_beyond_what_is_kept() -> None:
    sizes = grown(15_000, 5_000)
    assert sizes[15_000] < 1.5 * sizes[5_000]
