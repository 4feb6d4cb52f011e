"""What is read out of streams' bytes and times."""

from __future__ import annotations

from antiphon_server.bench.overhead.contenders import DIRECT, FIRST
from antiphon_server.bench.overhead.crowds import CrowdPlan, CrowdSample, crowd_rows
from antiphon_server.bench.overhead.streams import (
    Arrival,
    Crowd,
    Received,
    delays,
    disordered,
    fates,
    gaps,
    lost,
    read,
)


def event(number: int, sent_ns: int) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"%d:%d"}}]}\n\n' % (number, sent_ns)


DONE = b"data: [DONE]\n\n"


def stream(*numbers: int, sent: float = 0.0, delay: float = 0.0, done: bool = True) -> Received:
    """One chunk a second."""
    return Received(
        tuple(Arrival(n, sent + place, sent + place + delay) for place, n in enumerate(numbers)), done
    )


def test_every_chunk_has_its_number_and_both_its_times() -> None:
    pieces = [(2_000_000_000, event(0, 1_000_000_000)), (4_000_000_000, event(1, 3_500_000_000) + DONE)]
    assert read(pieces) == Received((Arrival(0, 1.0, 2.0), Arrival(1, 3.5, 4.0)), True)


def test_an_event_has_come_with_its_last_byte() -> None:
    whole = event(0, 1_000_000_000)
    for cut in range(1, len(whole)):
        received = read([(2_000_000_000, whole[:cut]), (3_000_000_000, whole[cut:])])
        assert (received.arrivals, received.done) == ((Arrival(0, 1.0, 3.0),), False)


def test_several_events_in_a_piece_have_come_at_once() -> None:
    received = read([(5_000_000_000, event(0, 0) + event(1, 0) + event(2, 0)[:9])])
    assert [a.number for a in received.arrivals] == [0, 1]


def test_missing_chunks_and_missing_ends_are_lost() -> None:
    assert lost([stream(0, 1, 2), stream(0, 1, 2)], 3) == 0
    assert lost([stream(0, 2), stream(0, 1, 2)], 3) == 1
    assert lost([stream(0, 1, 2, done=False)], 3) == 1
    assert lost([stream(0, 0, 1)], 3) == 1


def test_what_became_of_streams_that_are_not_whole_is_told() -> None:
    cut = Received((Arrival(0, 1.0, 1.0),), False, open=True, tail=b"data: {")
    streams = [stream(0, 1, 2), cut, cut, stream(0, 2)]
    assert fates(streams, 3) == [
        "2 x left open after 1 of 3 chunks, b'data: {'",
        "1 x ended after 2 of 3 chunks, b''",
    ]


def test_chunks_behind_later_ones_or_twice_are_disordered() -> None:
    assert disordered([stream(0, 1, 2)]) == 0
    assert disordered([stream(0, 2, 1, 3)]) == 1
    assert disordered([stream(0, 1, 1)]) == 1


def test_gaps_and_delays_are_of_each_stream_alone() -> None:
    streams = [stream(0, 1, delay=0.5), stream(0, 1, 2, sent=10.0, delay=0.25)]
    assert gaps(streams) == [1.0, 1.0, 1.0]
    assert delays(streams) == [0.5, 0.5, 0.25, 0.25, 0.25]


def test_only_the_seconds_that_count_are_counted() -> None:
    plan = CrowdPlan((1,), rate=1.0, seconds=4.0, settle=2.0)
    direct = Crowd((stream(*range(plan.chunks)),), 0.0)
    # Late while all begin and at the end, not between.
    times = [9.0 if place < 2 or place >= 6 else place + 0.5 for place in range(plan.chunks)]
    slow = Received(tuple(Arrival(n, float(n), times[n]) for n in range(plan.chunks)), True)
    samples = [
        (DIRECT, CrowdSample(direct, 0.0, 0.1, 0.1, 0.0)),
        (FIRST, CrowdSample(Crowd((slow,), 0.0), 0.5, 0.1, 0.1, 0.0)),
    ]
    base, own = crowd_rows(plan, 1, samples)
    assert (base.gap_p99, base.delay_p99) == (1.0, 0.0)
    assert (own.added_gap_p99, own.added_delay_p99) == (0.0, 0.5)
    assert (own.lost, own.disordered, own.chunks) == (0, 0, plan.chunks)
    assert own.rate == 1.0
