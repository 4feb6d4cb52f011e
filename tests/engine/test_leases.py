from __future__ import annotations

from antiphon_server.engine.leases import LeaseBook


def test_renewal_moves_the_deadline_and_says_what_it_granted() -> None:
    deadlines = {"a": 15.0}
    book = LeaseBook(deadlines, {"a"}, longest=100)
    assert book.renew("a", 60, now=10) == 60
    assert deadlines == {"a": 70.0}


def test_renewal_is_capped() -> None:
    deadlines = {"a": 15.0}
    assert LeaseBook(deadlines, {"a"}, longest=100).renew("a", 1e9, now=10) == 100
    assert deadlines == {"a": 110.0}


def test_renewal_that_its_release_overtook_does_not_bring_the_lease_back() -> None:
    deadlines = {"a": 60.0}
    book = LeaseBook(deadlines, {"a"}, longest=100)
    assert book.release("a", now=10)
    assert book.renew("a", 60, now=10) is None
    assert deadlines == {"a": 10.0}


def test_unknown_leases_are_unknown() -> None:
    book = LeaseBook({}, set(), longest=100)
    assert book.renew("a", 60, now=0) is None
    assert not book.release("a", now=0)


def test_release_that_overtakes_its_deadline_is_kept_until_it_arrives() -> None:
    deadlines: dict[str, float] = {}
    book = LeaseBook(deadlines, {"a", "b"}, longest=100)
    assert book.release("a", now=1)
    deadlines.update(a=60.0, b=60.0)
    book.arrived(["a", "b"], now=2)
    assert deadlines == {"a": 2.0, "b": 60.0}


def test_early_release_of_a_request_that_is_gone_is_forgotten() -> None:
    deadlines: dict[str, float] = {}
    known = {"a"}
    book = LeaseBook(deadlines, known, longest=100)
    book.release("a", now=1)
    known.clear()
    book.arrived([], now=2)
    known.add("a")
    deadlines["a"] = 60.0
    book.arrived(["a"], now=3)
    assert deadlines == {"a": 60.0}


def test_leg_is_released_by_its_name_whether_it_has_finished_or_not() -> None:
    deadlines = {"chatcmpl-t-p1-0a": 60.0, "chatcmpl-t-p10-0b": 60.0, "cmpl-t-p1-0-0c": 60.0}
    book = LeaseBook(deadlines, {*deadlines, "chatcmpl-t-p1-0d"}, longest=100)
    book.release_leg("t-p1", now=1)
    deadlines["chatcmpl-t-p1-0d"] = 60.0
    book.arrived(["chatcmpl-t-p1-0d"], now=2)
    assert deadlines == {
        "chatcmpl-t-p1-0a": 1.0,
        "chatcmpl-t-p10-0b": 60.0,
        "cmpl-t-p1-0-0c": 1.0,
        "chatcmpl-t-p1-0d": 2.0,
    }
