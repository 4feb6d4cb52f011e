"""Expected TTFT: what is new in a turn, and what each path would take."""

from __future__ import annotations

import dataclasses

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from antiphon_server.router.gate.identity import Key
from antiphon_server.router.plan.budget import AppendBudget
from antiphon_server.router.plan.extent import Extent, extent_of, grown
from antiphon_server.router.plan.forecast import Growth, forecast, growth
from antiphon_server.router.plan.rates import Rates, Work
from antiphon_server.router.store.frontier import Frontier

Messages = list[dict[str, str]]


def body(messages: Messages, **fields: object) -> dict[str, bytes]:
    given: dict[str, object] = {"messages": messages, **fields}
    return {name: msgspec.json.encode(value) for name, value in given.items()}


def extent(messages: Messages, **fields: object) -> Extent:
    found = extent_of(body(messages, **fields))
    assert found is not None
    return found


FIRST: Messages = [{"role": "user", "content": "a" * 4000}]
ANSWER: Messages = [{"role": "assistant", "content": "b" * 400}]
MORE: Messages = [{"role": "user", "content": "c" * 800}]
FRONTIER = Frontier(
    Key("", "m", "", "c"),
    b"{}",
    "lease",
    "d",
    "e",
    tokens=1100,
    deadline=9.0,
    idle_since=0.0,
    prompt_tokens=1000,
    extent=extent(FIRST),
)

words = st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": st.text()}), min_size=1)


@given(words, words)
def test_what_was_appended_is_measured(before: Messages, more: Messages) -> None:
    appended = grown(extent(before), body(before + more))
    assert appended == len(msgspec.json.encode(before + more)) - len(msgspec.json.encode(before))


@given(words, words)
def test_changed_history_is_seen(before: Messages, more: Messages) -> None:
    changed = [{**before[0], "content": before[0]["content"] + "x"}, *before[1:], *more]
    assert grown(extent(before), body(changed)) is None


def test_shortened_history_and_other_tools_are_seen() -> None:
    assert grown(extent(FIRST + ANSWER), body(FIRST)) is None
    tools = [{"type": "function"}]
    assert grown(extent(FIRST, tools=tools), body(FIRST + MORE, tools=tools)) is not None
    assert grown(extent(FIRST, tools=tools), body(FIRST + MORE)) is None


def test_prompts_and_inputs_are_histories_too() -> None:
    assert grown(extent_of({"prompt": b'"abc"'}) or extent(FIRST), {"prompt": b'"abcdef"'}) == 3
    assert extent_of({"model": b'"m"'}) is None


def test_answer_counts_as_held() -> None:
    turn = growth(FRONTIER, body(FIRST + ANSWER + MORE), 0.25)
    assert turn.known
    assert turn.held == 1100
    assert 150 <= turn.new <= 350  # 800 bytes at a quarter of a token each, and quotes


def test_rewritten_history_is_not_known() -> None:
    assert not growth(FRONTIER, body(MORE + FIRST), 0.25).known
    assert not growth(dataclasses.replace(FRONTIER, extent=None), body(FIRST), 0.25).known


def measured(append: float = 1e-4) -> Rates:
    """A fleet that computes 10,000 tokens/s and moves 1,000,000."""
    rates = Rates()
    for new, pulled in ((100, 0), (1000, 0), (10_000, 0), (100, 9900), (1000, 9000)):
        work = Work(new, new + pulled, pulled=pulled)
        rates.saw_prefill("p", work, 0.02 + new * 1e-4 + pulled * 1e-6)
        rates.saw_handed_over("d", Work(0, new, pulled=new), 0.02 + new * 1e-6)
        rates.saw_append("d", Work(new, new + pulled), 0.02 + new * append)
    return rates


def expect(
    turn: Growth, rates: Rates, *, streams: int = 0, room: float = 0.5, filled: int = 0
) -> tuple[float, float, float]:
    found = forecast(
        turn, rates, prefill="p", decode="d", same_prefill=True, streams=streams, room=room, filled=filled
    )
    assert found.cold is not None
    assert found.reuse is not None
    assert found.append is not None
    return found.cold, found.reuse, found.append


def test_short_turn_is_fastest_straight_to_decode() -> None:
    cold, reuse, append = expect(Growth(10_000, 100, known=True), measured())
    assert append < reuse < cold


def test_long_turn_is_faster_through_prefill_when_decode_is_slow() -> None:
    cold, reuse, append = expect(Growth(10_000, 5000, known=True), measured(append=1e-3))
    assert reuse < append
    assert reuse < cold


def test_prefills_own_cache_makes_cold_cheaper() -> None:
    rates = measured()
    before, _, _ = expect(Growth(10_000, 100, known=True), rates)
    rates.saw_local("p", 0.9, same=True)
    after, _, _ = expect(Growth(10_000, 100, known=True), rates)
    assert after < before / 4


def test_pull_of_little_is_not_worth_its_latency() -> None:
    # Prefill's own cache has nearly all, so a pull would bring 100 tokens: computing them takes 10 ms.
    def legs(latency: float) -> Rates:
        rates = Rates()
        for _ in range(3):
            for new, pulled in ((100, 0), (1000, 0), (4000, 0), (100, 900), (100, 9900), (1000, 4000)):
                seconds = 0.02 + new * 1e-4 + pulled * 1e-6 + (latency if pulled else 0.0)
                rates.saw_prefill("p", Work(new, new + pulled, pulled=pulled), seconds)
        rates.saw_local("p", 0.99, same=True)
        return rates

    turn = Growth(10_000, 100, known=True)
    for latency, pays in ((0.0, True), (0.03, False)):
        found = forecast(turn, legs(latency), prefill="p", decode="d", same_prefill=True, streams=0, room=0.5)
        assert found.cold is not None
        assert found.reuse is not None
        assert (found.reuse < found.cold) is pays
    # Where prefill has moved on, the same latency is worth it.
    elsewhere = forecast(turn, legs(0.03), prefill="p", decode="d", same_prefill=False, streams=0, room=0.5)
    assert elsewhere.cold is not None
    assert elsewhere.reuse is not None
    assert elsewhere.reuse < elsewhere.cold / 2


def test_hand_over_brings_only_what_decode_does_not_hold() -> None:
    rates, turn = measured(), Growth(10_000, 100, known=True)
    home, away = (
        forecast(turn, rates, prefill="p", decode="d", same_prefill=True, streams=0, room=1.0, stays=stays)
        for stays in (True, False)
    )
    assert home.reuse is not None
    assert away.reuse is not None
    assert away.reuse - home.reuse > 0.005


def test_long_append_on_decode_delays_a_hand_over() -> None:
    rates, turn = measured(), Growth(10_000, 100, known=True)
    _, before, _ = expect(turn, rates)
    with rates.computing("d", 20_000):
        _, after, _ = expect(turn, rates)
    assert after > before + 1.0


def test_rewritten_prompt_is_as_long_as_its_bytes_say() -> None:
    turn = growth(FRONTIER, body(MORE + FIRST + MORE + FIRST), 0.25)
    assert not turn.known
    assert turn.total > 2000


def test_append_needs_room_only_beside_other_streams() -> None:
    turn = Growth(10_000, 3000, known=True)
    for streams, room, allowed in ((0, 0.0, True), (3, 0.0, False), (3, 10.0, True)):
        found = forecast(
            turn, measured(), prefill="p", decode="d", same_prefill=True, streams=streams, room=room
        )
        assert found.room is allowed


def test_unmeasured_decode_is_taken_to_compute_like_prefill() -> None:
    rates = measured()
    rates.forget("d")
    turn = Growth(10_000, 100, known=True)
    found = forecast(turn, rates, prefill="p", decode="d", same_prefill=True, streams=0, room=1.0)
    assert found.append == rates.prefill("p", Work(100, 10_100))


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1)), max_size=60))
def test_appends_stay_within_their_share_of_decode(asked: list[tuple[float, float]]) -> None:
    budget = AppendBudget(slowdown=1.25, stall=0.5)
    now, spent = 0.0, 0.0
    for pause, seconds in asked:
        now += pause
        if seconds <= budget.room(now):
            budget.spend(seconds, now)
            spent += seconds
    assert spent <= 0.5 + 0.2 * now + 1e-6


def test_prefill_has_nothing_of_turns_that_went_straight_to_decode() -> None:
    rates, turn = measured(), Growth(held=4400, new=870, known=True)
    rates.saw_local("p", 1.0, same=True)

    def sooner(filled: int) -> bool:
        cold, reuse, _ = expect(turn, rates, filled=filled)
        return reuse < cold

    assert sooner(2500)
    assert not sooner(4400)
    assert not sooner(0)  # unknown
