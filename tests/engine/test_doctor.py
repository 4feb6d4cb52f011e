"""The doctor on real engines: sound ones pass, and one that does not check what it pulls is found out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from antiphon_server.doctor.finding import Examination
from antiphon_server.doctor.fleet import checks
from antiphon_server.doctor.fleet.examine import examine
from antiphon_server.doctor.fleet.pair import Pair as Legs
from antiphon_server.doctor.fleet.round_trip import travel
from antiphon_server.doctor.fleet.target import FleetTarget
from rig import counters
from rig.answers import MODEL
from rig.fleet import KV_BYTES_PER_TOKEN, UNCHECKED, Pair

pytestmark = pytest.mark.engine

SINCE_START = {checks.TRANSFERS.word, checks.LATE.word}
"""Other tests make transfers fail on these engines."""
TOKENS = 1024


def examined(pair: Pair) -> tuple[Examination, list[str]]:
    """All of it, and the words of what was found."""
    found = examine(FleetTarget(pair.router, (pair.prefill,), (pair.decode,), timeout=60.0))
    return found, [finding.check for finding in found.findings if finding.check not in SINCE_START]


def test_sound_engines_are_found_sound_and_left_as_they_were(pair: Pair) -> None:
    before = counters.pinned(pair.decode), counters.pinned(pair.prefill)
    found, words = examined(pair)
    assert words == []
    assert found.checked == {check.word for check in checks.FLEET}
    facts = {fact.name: fact.value for fact in found.facts}
    assert facts["next turn against full computation"].startswith("the same")
    assert facts["rewritten history against full computation"].startswith("the same")
    assert "path=reuse" in facts["turn 2 of a conversation"]
    after = counters.eventually(
        lambda: (counters.pinned(pair.decode), counters.pinned(pair.prefill)), lambda now: now <= before
    )
    assert after <= before


def test_round_trip_counts_bytes_and_time_both_ways(pair: Pair) -> None:
    with Legs(pair.prefill, pair.decode, MODEL, key=None, stock=False) as legs:
        trip = travel(legs, TOKENS)
    assert trip.seal is not None
    assert trip.seal.pulled is not None
    assert trip.seal.pulled > TOKENS  # all that prefill had not seen, the answers included
    assert trip.back.tokens == trip.seal.pulled
    assert trip.back.received == trip.seal.pulled * KV_BYTES_PER_TOKEN
    assert trip.there.tokens >= TOKENS - 1
    assert trip.there.received >= trip.there.tokens * KV_BYTES_PER_TOKEN
    assert trip.there.bandwidth
    assert trip.back.bandwidth


def test_prefill_that_does_not_check_is_found_out(pairs: Mapping[str, Pair]) -> None:
    found, words = examined(pairs[UNCHECKED])
    assert checks.REWRITTEN.word in words
    assert checks.EXACT_ROUTER.word in words
    assert checks.EXACT.word not in words
    (finding,) = (finding for finding in found.findings if finding.check == checks.REWRITTEN.word)
    assert "with reuse" in finding.what
    assert "computed in full" in finding.what
