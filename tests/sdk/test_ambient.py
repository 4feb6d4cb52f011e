from __future__ import annotations

import logging

import pytest

import antiphon
from antiphon import _ambient


@pytest.fixture(autouse=True)
def no_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ambient, "_resolvers", {})
    monkeypatch.setattr(_ambient, "_awaited", {})


def test_framework_that_knows_a_conversation_is_asked_where_no_block_is_open() -> None:
    known = antiphon.conversation("known")
    assert antiphon.current() is None
    _ambient.register("idle", lambda block: None)
    _ambient.register("busy", lambda block: known if block is None else None)
    assert antiphon.current() is known
    with antiphon.conversation("block") as block:
        assert antiphon.current() is block


def test_framework_may_name_a_child_of_the_block() -> None:
    _ambient.register("framework", lambda block: block.child("summary") if block else None)
    assert antiphon.current() is None
    with antiphon.conversation("block"):
        assert antiphon.current() == antiphon.conversation("block/summary", parent="block")


def test_second_resolver_of_a_framework_replaces_the_first() -> None:
    _ambient.register("framework", lambda block: antiphon.conversation("old"))
    _ambient.register("framework", lambda block: None)
    assert antiphon.current() is None


def test_resolver_that_fails_costs_no_call(caplog: pytest.LogCaptureFixture) -> None:
    known = antiphon.conversation("known")
    _ambient.register("broken", lambda block: 1 // 0)  # type: ignore[arg-type, return-value]
    _ambient.register("busy", lambda block: known)
    with caplog.at_level(logging.DEBUG, "antiphon"):
        assert antiphon.current() is known
    assert "cannot ask broken" in caplog.text
