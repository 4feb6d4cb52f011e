from __future__ import annotations

import hashlib
import re
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import antiphon


@pytest.mark.parametrize("identity", ["a", "T/call_1", "two words", "~" * 128, "!", "..."])
def test_printable_ascii_id_travels_as_it_is(identity: str) -> None:
    assert antiphon.conversation(identity).id == identity


@pytest.mark.parametrize(
    "identity", ["é", "a" * 129, "a\nb", "tab\there", " a", "a ", " ", "\x7f", "\ud800", ".", ".."]
)
def test_any_other_id_travels_as_its_hash(identity: str) -> None:
    expected = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()
    assert antiphon.conversation(identity).id == expected
    assert antiphon.conversation("x", parent=identity).parent == expected


@given(st.text(min_size=1))
def test_every_id_fits_a_header_and_normalising_it_again_changes_nothing(identity: str) -> None:
    travels = antiphon.conversation(identity).id
    assert re.fullmatch(r"[!-~]([ -~]{0,126}[!-~])?", travels)
    assert antiphon.conversation(travels).id == travels


def test_conversation_without_an_id_gets_a_fresh_one() -> None:
    ids = {antiphon.conversation().id for _ in range(100)}
    assert len(ids) == 100


def test_empty_id_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(antiphon.ConversationError, match="empty: pass a name"):
        antiphon.conversation("")
    with pytest.raises(antiphon.ConversationError, match="has no name"):
        antiphon.conversation("a").child("")


def test_id_of_another_type_is_an_error_that_names_the_value() -> None:
    with pytest.raises(antiphon.ConversationError, match=r"id 7 is a int.*str\(\.\.\.\)"):
        antiphon.conversation(cast("Any", 7))
