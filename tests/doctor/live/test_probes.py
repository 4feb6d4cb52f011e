"""What the doctor makes of what its probes saw."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from antiphon_server.doctor.fleet import checks, conversation, exactness, round_trip, words
from antiphon_server.doctor.fleet.answer import Answer
from antiphon_server.doctor.fleet.exactness import Compared, Exactness
from antiphon_server.doctor.fleet.pair import Pair
from antiphon_server.doctor.fleet.round_trip import Moved, Trip

P, D = "http://10.0.0.1:8100", "http://10.0.0.2:8200"
SAID = Answer(("a",), (-0.1,), ({"a": -0.1},), "a")
OTHER = Answer(("b",), (-0.1,), ({"b": -0.1},), "b")
SAME, WRONG = Compared(SAID, SAID, 0.1), Compared(OTHER, SAID, 0.1)
MOVED = Moved(2**30, 0.1, 2048)
REUSED = "path=reuse; matched=64; reason=full"


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair(P, D, "m", key=None, stock=False) as own:
        yield own


def trip(there: Moved = MOVED, back: Moved = MOVED, hosts: dict[str, str] | None = None) -> Trip:
    return Trip(there, back, None, hosts or {P: "10.0.0.1", D: "10.0.0.2"}, ([1], SAID))


def test_good_trip_has_no_finding_and_says_its_bandwidth(pair: Pair) -> None:
    assert [*round_trip.findings(pair, trip(), "bfloat16")] == []
    values = {fact.name: fact.value for fact in round_trip.facts(pair, trip())}
    assert values["prefill to decode"] == "2048 tokens, 1 GiB, 10 GiB/s"


def test_nothing_pulled_is_found_for_each_way(pair: Pair) -> None:
    nothing = Moved(0, 0, 0)
    subjects = [found.subject for found in round_trip.findings(pair, trip(nothing, nothing), None)]
    assert subjects == [f"decode {D}", f"prefill {P}"]


def test_much_kv_that_goes_as_slowly_as_over_tcp_is_found(pair: Pair) -> None:
    slow = Moved(2**30, 2.0, 2048)
    (found,) = round_trip.findings(pair, trip(back=slow), "bfloat16")
    assert (found.check, "512 MiB/s" in found.what) == (checks.BANDWIDTH.word, True)
    assert [*round_trip.findings(pair, trip(back=slow), "float32")] == []  # a CPU's is no news
    assert [
        *round_trip.findings(pair, trip(back=Moved(2**20, 1.0, 64)), "bfloat16")
    ] == []  # too little to tell


def test_loopback_side_channel_is_found_between_machines_only(pair: Pair) -> None:
    (found,) = round_trip.findings(pair, trip(hosts={P: "localhost", D: "10.0.0.2"}), None)
    assert (found.check, found.subject) == (checks.SIDE_CHANNEL.word, P)
    with Pair("http://localhost:1", "http://127.0.0.1:2", "m", key=None, stock=False) as near:
        assert [*round_trip.findings(near, trip(hosts={"x": "127.0.0.1"}), None)] == []


def test_wrong_answers_are_told_with_both_texts(pair: Pair) -> None:
    assert [*exactness.findings(pair, Exactness(SAME, SAME))] == []
    assert len([*exactness.facts(pair, Exactness(SAME, SAME))]) == 2
    (found,) = exactness.findings(pair, Exactness(SAME, WRONG))
    assert found.check == checks.REWRITTEN.word
    assert "'b' with reuse, 'a' computed in full" in found.what
    (found,) = exactness.findings(pair, Exactness(WRONG, SAME))
    assert found.check == checks.EXACT.word
    assert len([*exactness.facts(pair, Exactness(WRONG, SAME))]) == 1


@pytest.mark.parametrize(
    ("second", "found"),
    [
        (REUSED, []),
        ("path=append; matched=64; reason=short", []),
        ("path=cold; matched=0; reason=slower", []),  # a choice
        ("path=cold; matched=0; reason=lost", [checks.ROUTER_REUSE.word]),
        ("path=cold; matched=0; reason=first", [checks.ROUTER_REUSE.word]),
        ("path=cold; matched=0; reason=a-word-of-another-version", []),
        ("", []),
    ],
)
def test_second_turn_that_finds_nothing_is_found(second: str, found: list[str]) -> None:
    talked = conversation.Talked(SAME, SAME, ("path=cold; matched=0; reason=first", second, REUSED))
    assert [finding.check for finding in conversation.findings("http://r", talked)] == found


def test_wrong_answers_through_the_router_are_found() -> None:
    talked = conversation.Talked(WRONG, WRONG, (REUSED,) * 3)
    assert [one.check for one in conversation.findings("http://r", talked)] == [checks.EXACT_ROUTER.word] * 2


def test_probes_say_what_nobody_has_said() -> None:
    def ids(text: str) -> list[int]:
        return [*text.encode()]

    assert len(words.log(300, ids)) == 300
    assert words.log(300, ids) != words.log(300, ids)
    assert words.fresh() != words.fresh()
    assert len(words.log_text(100)) == 100
