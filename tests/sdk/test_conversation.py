from __future__ import annotations

import copy
import pickle

import pytest

import antiphon


def test_conversation_is_a_frozen_value() -> None:
    conversation = antiphon.conversation("a", parent="p")
    with pytest.raises(AttributeError):
        conversation.id = "b"  # type: ignore[misc]
    assert conversation == antiphon.conversation("a", parent="p")
    assert conversation != antiphon.conversation("a")
    assert len({conversation, antiphon.conversation("a", parent="p")}) == 1


def test_pickle_keeps_the_value_and_leaves_credentials_behind() -> None:
    conversation = antiphon.conversation("a", parent="p", keep=True)
    conversation.seen_by(antiphon.Router("http://r/v1", (("authorization", "Bearer s3cret"),)))
    with conversation:
        pickled = pickle.dumps(conversation)
    loaded = pickle.loads(pickled)
    assert (loaded, loaded.keep) == (conversation, True)
    assert b"s3cret" not in pickled


def test_copies_are_the_conversation_itself() -> None:
    conversation = antiphon.conversation("a")
    assert copy.copy(conversation) is conversation
    assert copy.deepcopy({"state": conversation})["state"] is conversation


def test_repr_shows_the_id_and_no_credentials() -> None:
    conversation = antiphon.conversation("a")
    router = antiphon.Router("http://r/v1", (("authorization", "Bearer s3cret"),))
    conversation.seen_by(router)
    assert repr(conversation) == "Conversation(id='a', parent=None, keep=False)"
    assert "s3cret" not in repr(router)


def test_child_is_named_under_its_parent() -> None:
    child = antiphon.conversation("a").child("search")
    assert (child.id, child.parent) == ("a/search", "a")
    assert (child.child("deep").id, child.child("deep").parent) == ("a/search/deep", "a/search")


def test_child_of_a_long_id_still_fits() -> None:
    child = antiphon.conversation("a" * 120).child("a rather long name")
    assert len(child.id) == 64
    assert child.parent == "a" * 120


def test_parent_is_given_as_a_conversation_or_an_id() -> None:
    parent = antiphon.conversation("p")
    assert antiphon.conversation("c", parent=parent) == antiphon.conversation("c", parent="p")
