"""How much room a turn's answer needs."""

from __future__ import annotations

import random

from antiphon_server.router.keep.answers import Answers


def test_limit_counts_where_it_is_lower() -> None:
    answers = Answers()
    assert answers.most(16) == 16
    assert answers.most(None) == answers.most(10**6) == 2048


def test_room_follows_what_answers_come_to() -> None:
    answers, draw = Answers(), random.Random(5)
    lengths = [int(draw.lognormvariate(5.0, 0.8)) + 1 for _ in range(1000)]
    for tokens in lengths:
        answers.add(tokens)
    assert sum(tokens > answers.most(None) for tokens in lengths) <= 5
    assert answers.most(32_000) < 4000


def test_longer_answers_are_soon_believed() -> None:
    answers = Answers()
    for tokens in [100] * 2000 + [5000] * 50:
        answers.add(tokens)
    assert answers.most(None) >= 5000


def test_many_answers_do_not_overflow() -> None:
    answers = Answers()
    for _ in range(50_000):
        answers.add(100)
    assert 100 <= answers.most(None) <= 400
