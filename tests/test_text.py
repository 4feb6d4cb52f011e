from __future__ import annotations

import pytest

from antiphon_server.text import cut, fit


def test_text_is_the_same_in_every_run() -> None:
    assert cut(1, 5000) == cut(1, 5000)
    assert cut(1, 5000) != cut(2, 5000)


def test_longer_text_begins_with_the_shorter_one() -> None:
    assert cut(1, 5000).startswith(cut(1, 1234))


@pytest.mark.parametrize("tokens", [1, 31, 300, 8000])
def test_text_has_the_wanted_number_of_tokens(tokens: int) -> None:
    assert len(fit(1, tokens, len)) == tokens


def test_text_comes_near_where_tokens_are_several_characters() -> None:
    assert fit(1, 2000, lambda text: len(text) // 3) == fit(1, 2000, lambda text: len(text) // 3)
    assert len(fit(1, 2000, lambda text: len(text) // 3)) // 3 == pytest.approx(2000, abs=2)
