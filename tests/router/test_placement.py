"""Which worker takes a leg."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_server.router.fleet.breaker import BreakerPolicy
from antiphon_server.router.fleet.pairs import PAIR_POLICY, Pairs
from antiphon_server.router.fleet.placement import Outcome, Place, Placement
from antiphon_server.router.fleet.places import Places
from antiphon_server.router.fleet.ring import Ring
from antiphon_server.router.fleet.worker import Worker
from antiphon_server.router.fleet.workers import Workers
from antiphon_server.router.gate.identity import Key
from antiphon_server.router.upstream.upstream import Timeouts, Upstream
from doubles.engine_info import info

BOUND = 1.5
FAILURES = 3


class Fleet:
    """Workers without sockets, and a placement over them. ``now`` passes only when told to."""

    def __init__(
        self, prefills: int = 2, decodes: int = 4, *, bound: float = BOUND, known: int = 1000
    ) -> None:
        self.now = 0.0
        self.outcomes: Counter[tuple[str, Outcome]] = Counter()
        self.workers = Workers(
            [f"http://p{i}" for i in range(prefills)],
            [f"http://d{i}" for i in range(decodes)],
            Upstream(Timeouts(1, 1, 1)),
            breaker=BreakerPolicy(failures=FAILURES, jitter=0.0),
            clock=lambda: self.now,
        )
        for worker in self.workers:
            worker.engine.healthy = True
        self.placement = Placement(
            self.workers,
            known=known,
            bound=bound,
            pairs=Pairs(draw=lambda: 0.0),
            clock=lambda: self.now,
            source=random.Random(1),
            placed=self._placed,
        )

    def _placed(self, role: str, outcome: Outcome) -> None:
        self.outcomes[role, outcome] += 1

    def named(self, name: str) -> Worker:
        found = self.workers.find(name)
        assert found is not None
        return found

    def decode(self, key: Key | None = None, preferred: str | None = None, avoid: Sequence[str] = ()) -> str:
        chosen = self.placement.decode(key, preferred, avoid)
        assert chosen is not None
        return chosen.name

    def shut_out(self, name: str) -> None:
        for _ in range(FAILURES):
            self.named(name).failed(self.now)


def key(conversation: str, tenant: str = "t", model: str = "m", salt: str = "") -> Key:
    return Key(tenant, model, salt, conversation)


# --- the conversation's own ---


def test_conversation_stays_with_its_worker() -> None:
    fleet = Fleet()
    for name in ("http://d0", "http://d1", "http://d2", "http://d3"):
        assert fleet.decode(key("c"), name) == name
    assert fleet.outcomes == {("decode", Outcome.STICKY): 4}


def test_small_differences_of_load_move_nobody() -> None:
    fleet = Fleet(decodes=2)
    fleet.named("http://d0").in_flight = 2
    assert fleet.decode(key("c"), "http://d0") == "http://d0"


def test_overloaded_worker_is_left() -> None:
    fleet = Fleet()
    fleet.named("http://d0").in_flight = 20
    assert fleet.decode(key("c"), "http://d0") != "http://d0"
    assert fleet.outcomes == {("decode", Outcome.MOVED_LOAD): 1}


def test_backlog_counts_as_load() -> None:
    fleet = Fleet()
    fleet.named("http://d0").backlog = 20.0
    assert fleet.decode(key("c"), "http://d0") != "http://d0"


def _down(fleet: Fleet) -> None:
    fleet.named("http://d0").engine.healthy = False


def _draining(fleet: Fleet) -> None:
    fleet.workers.drain("decode", "http://d0")


def _shut_out(fleet: Fleet) -> None:
    fleet.shut_out("http://d0")


@pytest.mark.parametrize("happen", [_down, _draining, _shut_out])
def test_worker_that_cannot_serve_is_left_until_it_can(happen: Callable[[Fleet], None]) -> None:
    fleet = Fleet()
    happen(fleet)
    assert fleet.decode(key("c"), "http://d0") != "http://d0"
    assert fleet.outcomes == {("decode", Outcome.MOVED_HEALTH): 1}
    fleet.named("http://d0").engine.healthy = True
    fleet.workers.undrain("decode", "http://d0")
    fleet.now += 60
    assert fleet.decode(key("c"), "http://d0") == "http://d0"


def test_worker_that_left_the_fleet_is_replaced() -> None:
    fleet = Fleet()
    assert fleet.decode(key("c"), "http://gone").startswith("http://d")
    assert fleet.outcomes == {("decode", Outcome.MOVED_HEALTH): 1}


# --- to be avoided ---


def test_avoided_worker_is_not_chosen_even_if_it_is_the_last() -> None:
    fleet = Fleet(decodes=2)
    assert fleet.decode(key("c"), "http://d0", avoid=["http://d0"]) == "http://d1"
    assert fleet.placement.decode(key("c"), "http://d0", ["http://d0", "http://d1"]) is None
    assert fleet.placement.prefill(None, fleet.named("http://d0"), None, ["http://p0", "http://p1"]) is None


def test_another_engine_comes_before_another_rank_of_the_avoided_one() -> None:
    fleet = Fleet(decodes=2)
    fleet.named("http://d0").engine.info = info(data_parallel=4)
    fleet.workers._set_ranks(fleet.named("http://d0").engine)
    for index in range(20):
        assert fleet.decode(key(str(index)), avoid=["http://d0#1"]) == "http://d1"
    fleet.named("http://d1").engine.healthy = False
    assert fleet.decode(key("c"), avoid=["http://d0#1"]) in {"http://d0#0", "http://d0#2", "http://d0#3"}


# --- the least bad ---


def test_when_all_are_shut_out_the_one_to_be_tried_first_is_used() -> None:
    fleet = Fleet(decodes=3)
    for name in ("http://d1", "http://d0", "http://d2"):
        fleet.shut_out(name)
        fleet.now += 0.1
    assert fleet.decode(key("c"), "http://d2") == "http://d1"
    assert fleet.outcomes == {("decode", Outcome.LEAST_BAD): 1}


@pytest.mark.parametrize(("shut", "parted"), [("http://p0", "http://p1"), ("http://p1", "http://p0")])
def test_when_all_prefill_is_shut_out_the_least_bad_pair_is_used(shut: str, parted: str) -> None:
    fleet = Fleet()
    decode = fleet.named("http://d0")
    fleet.shut_out(shut)
    for _ in range(PAIR_POLICY.failures):
        fleet.placement.pairs.failed(fleet.named(parted), decode, fleet.now)
    assert fleet.placement.prefill(None, decode) is fleet.named(shut)  # its pause is the shorter one


def test_half_open_worker_gets_one_turn() -> None:
    fleet = Fleet(decodes=2)
    fleet.shut_out("http://d0")
    fleet.now = fleet.named("http://d0").engine.breaker.retry_at(fleet.now)
    assert [fleet.decode(key("c"), "http://d0") for _ in range(3)] == ["http://d0", "http://d1", "http://d1"]
    fleet.named("http://d0").succeeded(fleet.now)
    assert fleet.decode(key("c"), "http://d0") == "http://d0"


def test_nobody_up_is_nobody() -> None:
    fleet = Fleet()
    for worker in fleet.workers:
        worker.engine.healthy = False
    assert fleet.placement.decode(key("c")) is None
    assert fleet.placement.prefill(key("c"), fleet.named("http://d0")) is None


def test_turn_that_needs_no_prefill_in_the_end_takes_no_trial_away() -> None:
    fleet = Fleet(prefills=1)
    prefill, decode = fleet.named("http://p0"), fleet.named("http://d0")
    fleet.shut_out("http://p0")
    for _ in range(PAIR_POLICY.failures):
        fleet.placement.pairs.failed(prefill, decode, fleet.now)
    fleet.now += PAIR_POLICY.pause
    for _ in range(3):
        assert fleet.placement.prefill(None, decode) is prefill
        assert prefill.available
    fleet.placement.claim(prefill, decode)
    assert not prefill.available
    assert not fleet.placement.pairs.allowed(prefill, decode, fleet.now)


# --- pairs ---


def test_prefill_that_cannot_hand_over_is_not_used() -> None:
    fleet = Fleet()
    for worker in fleet.workers:
        worker.engine.info = info()
    fleet.named("http://p0").engine.info = info(vllm="0.31.0")
    decode = fleet.named("http://d0")
    for index in range(20):
        assert fleet.placement.prefill(key(str(index)), decode, "http://p0") is fleet.named("http://p1")
    assert fleet.placement.prefill(None, decode, None, ["http://p1"]) is None


def test_decode_that_no_prefill_can_hand_over_to_is_not_preferred() -> None:
    fleet = Fleet(decodes=2)
    for worker in fleet.workers:
        worker.engine.info = info()
    fleet.named("http://d0").engine.info = info(tensor_parallel=2)
    for index in range(20):
        assert fleet.decode(key(str(index)), "http://d0") == "http://d1"
        assert fleet.decode(None) == "http://d1"
    fleet.named("http://d1").engine.healthy = False
    assert fleet.decode(key("c")) == "http://d0"


def test_decode_that_is_parted_from_all_prefill_is_not_preferred() -> None:
    fleet = Fleet(decodes=2)
    for prefill in fleet.workers.prefill:
        for _ in range(PAIR_POLICY.failures):
            fleet.placement.pairs.failed(prefill, fleet.named("http://d0"), fleet.now)
    assert fleet.decode(key("c"), "http://d0") == "http://d1"


def test_parted_pair_is_not_used_while_both_serve_others() -> None:
    fleet = Fleet(prefills=2, decodes=2)
    d0, d1, p0 = fleet.named("http://d0"), fleet.named("http://d1"), fleet.named("http://p0")
    for _ in range(PAIR_POLICY.failures):
        fleet.placement.pairs.failed(p0, d0, fleet.now)
    assert fleet.placement.prefill(None, d0, "http://p0") is fleet.named("http://p1")
    assert fleet.placement.prefill(None, d1, "http://p0") is p0
    assert fleet.decode(None, "http://d0") == "http://d0"


# --- the hash ---


def test_two_routers_agree_on_new_conversations() -> None:
    one, other = Fleet(decodes=7), Fleet(decodes=7)
    other.placement._random.seed(99)
    for index in range(200):
        assert one.decode(key(f"c{index}")) == other.decode(key(f"c{index}"))


def test_routers_with_the_fleet_named_in_another_order_agree() -> None:
    names = [f"http://d{i}" for i in range(9)]
    one, other = Ring(names), Ring(reversed(names))
    for point in range(0, 2**64, 2**57):
        assert list(one.walk(point)) == list(other.walk(point))


def test_of_the_first_two_on_the_ring_the_less_loaded_is_taken() -> None:
    fleet = Fleet(decodes=6)
    first = fleet.decode(key("c"))
    fleet.named(first).in_flight = 1
    second = fleet.decode(key("c"))
    assert second != first
    fleet.named(second).in_flight = 1
    assert fleet.decode(key("c")) == first
    fleet.named(first).in_flight = fleet.named(second).in_flight = 50
    assert fleet.decode(key("c")) not in {first, second}


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 12), st.integers(0, 10_000))
def test_worker_that_joins_or_leaves_moves_few(workers: int, seed: int) -> None:
    names = [f"http://{seed}-{i}:8000" for i in range(workers)]
    small, large = Ring(names), Ring([*names, "http://new:8000"])
    points = [random.Random(seed + i).getrandbits(64) for i in range(400)]
    before = [next(small.walk(point)) for point in points]
    after = [next(large.walk(point)) for point in points]
    assert all(new in {old, "http://new:8000"} for old, new in zip(before, after, strict=True))
    assert sum(old != new for old, new in zip(before, after, strict=True)) / len(points) < 2.0 / (workers + 1)


async def test_conversations_of_others_stay_when_the_fleet_changes() -> None:
    fleet = Fleet(decodes=8)
    keys = [key(f"c{index}") for index in range(400)]
    before = {k: fleet.decode(k) for k in keys}
    await fleet.workers.add("decode", "http://d8")
    fleet.named("http://d8").engine.healthy = True
    grown = {k: fleet.decode(k) for k in keys}
    assert all(grown[k] in {before[k], "http://d8"} for k in keys)
    assert 0 < sum(grown[k] != before[k] for k in keys) < 400 * 2 / 9
    await fleet.workers.remove("decode", "http://d8")
    assert {k: fleet.decode(k) for k in keys} == before


def test_worker_that_is_down_gets_its_conversations_back() -> None:
    fleet = Fleet(decodes=5)
    keys = [key(f"c{index}") for index in range(200)]
    before = {k: fleet.decode(k) for k in keys}
    fleet.named("http://d2").engine.healthy = False
    meanwhile = {k: fleet.decode(k) for k in keys}
    assert all(meanwhile[k] == before[k] for k in keys if before[k] != "http://d2")
    fleet.named("http://d2").engine.healthy = True
    assert {k: fleet.decode(k) for k in keys} == before


def test_shares_are_even() -> None:
    ring = Ring([f"http://d{i}" for i in range(8)])
    shares = Counter(next(ring.walk(point)) for point in range(0, 2**64, 2**53))
    mean = sum(shares.values()) / 8
    assert max(shares.values()) < 1.4 * mean


# --- load ---


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 8),
    st.floats(1.0, 3.0),
    st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.booleans()), min_size=1, max_size=150),
)
def test_no_worker_gets_a_turn_above_the_bound(
    decodes: int, bound: float, turns: list[tuple[int, bool, bool]]
) -> None:
    fleet = Fleet(decodes=decodes, bound=bound)
    places: dict[int, str] = {}
    running: list[Worker] = []
    for conversation, named, ends in turns:
        mean = sum(w.load for w in fleet.workers.decode) / decodes
        chosen = fleet.placement.decode(
            key(str(conversation)) if named else None, places.get(conversation) if named else None
        )
        assert chosen is not None
        assert chosen.load <= bound * mean + 1 + 1e-9
        chosen.in_flight += 1
        places[conversation] = chosen.name
        running.append(chosen)
        if ends:
            running.pop(0).in_flight -= 1


def test_anonymous_turns_spread() -> None:
    fleet = Fleet(decodes=5)
    for _ in range(500):
        chosen = fleet.placement.decode(None)
        assert chosen is not None
        chosen.in_flight += 1
    assert (
        max(w.in_flight for w in fleet.workers.decode) - min(w.in_flight for w in fleet.workers.decode) <= 6
    )


# --- what is remembered ---


def test_place_is_remembered_for_each_model_and_salt() -> None:
    fleet = Fleet()
    placement = fleet.placement
    placement.remember(key("c", model="a"), Place("http://p0", "http://d0"))
    placement.remember(key("c", model="b"), Place(None, "http://d1"))
    assert placement.of(key("c", model="a")) == Place("http://p0", "http://d0")
    assert placement.of(key("c", model="b")) == Place(None, "http://d1")
    assert placement.of(key("c", model="a", salt="s")) == Place()
    assert placement.of(key("c", tenant="u", model="a")) == Place()
    assert placement.of(None) == Place()


def test_forgetting_is_by_tenant_and_conversation_with_all_models() -> None:
    fleet = Fleet()
    placement = fleet.placement
    placement.remember(key("c", model="a"), Place(None, "http://d0"))
    placement.remember(key("c", model="b"), Place(None, "http://d1"))
    placement.remember(key("c", tenant="u"), Place(None, "http://d2"))
    assert placement.knows("t", "c")
    placement.forget("t", "c")
    assert not placement.knows("t", "c")
    assert placement.of(key("c", model="a")) == Place()
    assert placement.knows("u", "c")


def test_least_recent_conversations_are_forgotten_first() -> None:
    places = Places(3)
    for name in ("a", "b", "c"):
        places.remember(key(name), Place(None, name))
    places.remember(key("a"), Place(None, "again"))
    places.remember(key("d"), Place(None, "d"))
    assert [places.knows("t", name) for name in "abcd"] == [True, False, True, True]
    assert len(places) == 3


def test_models_of_one_conversation_are_bounded() -> None:
    places = Places(3)
    for index in range(100):
        places.remember(key("c", model=str(index)), Place(None, str(index)))
    assert places.of(key("c", model="99")) == Place(None, "99")
    assert places.of(key("c", model="0")) == Place()
    assert len(next(iter(places._entries.values()))) == 8


def test_very_many_conversations_take_little_memory() -> None:
    count = 5_000
    places = Places(count)
    tracemalloc.start()
    try:
        for index in range(2 * count):
            places.remember(key(f"{index:0128d}", tenant="x" * 32), Place("http://p0", "http://d0"))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(places) == count
    assert used / count < 450


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from("rfk"), st.integers(0, 8), st.sampled_from("ab"), st.integers(0, 3)),
        max_size=120,
    )
)
def test_places_behave_like_a_plain_table(steps: list[tuple[str, int, str, int]]) -> None:
    limit = 4
    places = Places(limit)
    table: dict[str, dict[str, Place]] = {}
    for what, number, model, decode in steps:
        name = f"c{number}"
        if what == "r":
            place = Place(None, f"http://d{decode}")
            places.remember(key(name, model=model), place)
            table[name] = {**table.pop(name, {}), model: place}
            if len(table) > limit:
                del table[next(iter(table))]
        elif what == "f":
            places.forget("t", name)
            table.pop(name, None)
        assert places.knows("t", name) == (name in table)
        assert places.of(key(name, model=model)) == table.get(name, {}).get(model, Place())
        assert len(places) == len(table)


# --- what is no turn ---


def test_what_is_no_turn_goes_to_any_worker_that_is_up() -> None:
    fleet = Fleet(decodes=4)
    fleet.workers.drain("decode", "http://d0")
    fleet.shut_out("http://d1")
    fleet.named("http://d2").engine.healthy = False
    decodes = fleet.workers.decode
    assert {fleet.placement.any_of(decodes) for _ in range(20)} == {fleet.named("http://d3")}
    fleet.named("http://d3").engine.healthy = False
    assert {fleet.placement.any_of(decodes) for _ in range(40)} <= {*decodes[:2]}
    assert fleet.placement.any_of(decodes, ["http://d0"]) is fleet.named("http://d1")
    assert fleet.placement.any_of(decodes, ["http://d0", "http://d1"]) is not None
    for worker in decodes:
        worker.engine.healthy = False
    assert fleet.placement.any_of(decodes) is None
