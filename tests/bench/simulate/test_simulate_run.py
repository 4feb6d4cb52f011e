"""Whole simulations: they repeat, conserve tokens and keep the router's promises."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from antiphon_server.bench.simulate import router as routers
from antiphon_server.bench.simulate.engine import Engine
from antiphon_server.bench.simulate.fleet import Fleet
from antiphon_server.bench.simulate.memory import Talk
from antiphon_server.bench.simulate.policy import POLICIES, policies
from antiphon_server.bench.simulate.presets import preset
from antiphon_server.bench.simulate.run import Result, SimulationError, simulate
from antiphon_server.bench.simulate.served import Served
from antiphon_server.bench.simulate.workload import CODING_AGENT, Conversation, Lane, LogNormal, Turn

MODEL = preset("qwen3-32b-p5en")
FLEET = Fleet(2, 2, 400_000, 400_000)
AGENTS = replace(CODING_AGENT, turns=6, window=60.0)


def run(policy: str, *, seed: int = 3, fleet: Fleet = FLEET, conversations: int = 24) -> Result:
    return simulate(AGENTS.lanes(conversations, seed), MODEL, fleet, policy, seed=seed)


@pytest.fixture(scope="module", params=[*POLICIES])
def result(request: pytest.FixtureRequest) -> Result:
    return run(request.param)


def test_nothing_is_lost(result: Result) -> None:
    lanes = AGENTS.lanes(24, 3)
    turns = [turn for lane in lanes for c in lane.conversations for turn in c.turns]
    assert result.turns == len(turns) == sum(result.paths.values()) == len(result.samples)
    assert result.prompt_tokens == sum(turn.prompt for turn in turns)
    assert result.answer_tokens == sum(turn.answer for turn in turns)


def test_every_prompt_token_is_computed_found_or_pulled(result: Result) -> None:
    assert result.prompt_tokens == result.computed + result.local + result.pulled
    assert result.computed > 0
    assert (result.pulled > 0) == (result.policy in {"proxy", "reuse", "auto"})


def test_the_same_seed_gives_the_same_result() -> None:
    assert run("auto") == run("auto")
    assert run("auto", seed=4) != run("auto")


def test_environment_has_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    before = run("auto")
    monkeypatch.setenv("ANTIPHON_KEEP_SHARE", "0.01")
    assert run("auto") == before


@pytest.mark.parametrize("policy", ["reuse", "append", "auto"])
def test_pinned_tokens_stay_within_the_budget(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every instant, where conversations come to more than all engines hold."""
    over: list[tuple[str, int]] = []
    grant = Engine.grant

    def watched(self: Engine, talk: Talk, owner: object, tokens: int, seconds: float) -> object:
        lease = grant(self, talk, owner, tokens, seconds)
        if self.name.startswith("http://d") and self.pinned > self.memory.capacity // 2:
            over.append((self.name, self.pinned))
        return lease

    monkeypatch.setattr(Engine, "grant", watched)
    found = run(policy, conversations=40)
    assert found.evictions.get("value", 0) > 0
    assert not over
    assert 0 < found.pinned_most <= found.budget == 0.5


def test_reuse_saves_computing_where_prefill_keeps_nothing() -> None:
    bare = replace(FLEET, prefill_cache=False)
    cold, auto = run("cold", fleet=bare), run("auto", fleet=bare)
    assert cold.computed == cold.prompt_tokens
    assert auto.computed < 0.5 * cold.computed
    first = cold.ttft["all"], auto.ttft["all"]
    assert first[0] is not None
    assert first[1] is not None
    assert first[1].mean < first[0].mean


def test_first_turns_cost_the_same_on_every_path() -> None:
    """Nothing is kept of them, so policies differ only later."""
    firsts = {name: run(name, conversations=2).ttft["1"] for name in ("cold", "auto", "append")}
    means = [found.mean for found in firsts.values() if found is not None]
    assert len(means) == 3
    assert max(means) == pytest.approx(min(means), rel=0.02)


def test_a_prompt_that_no_engine_holds_is_refused() -> None:
    with pytest.raises(SimulationError, match=r"c0 comes to .* tokens, but an engine holds 1000"):
        run("auto", fleet=replace(FLEET, decode_tokens=1000))


def test_nothing_to_simulate_is_said() -> None:
    with pytest.raises(SimulationError, match="nothing to simulate"):
        simulate([], MODEL, FLEET)


def test_fleets_have_a_size() -> None:
    with pytest.raises(ValueError, match="--prefill 65: choose 1 to 64"):
        Fleet(65, 1)


def test_policies_are_named() -> None:
    assert [each.name for each in policies(["auto", "cold", "auto"])] == ["auto", "cold"]
    with pytest.raises(ValueError, match="--policy 'warm' is no policy: choose from cold, proxy"):
        policies(["warm"])


def test_agents_are_as_they_were_measured() -> None:
    lanes = CODING_AGENT.lanes(600, 5)
    turns = [t for lane in lanes for c in lane.conversations for t in c.turns]
    gaps, answers = sorted(t.gap for t in turns if t.gap), sorted(t.answer for t in turns)
    source = random.Random(5)
    assert isinstance(CODING_AGENT.turns, LogNormal)
    counts = sorted(CODING_AGENT.turns.draw(source) for _ in range(10_000))
    assert counts[5_000] == pytest.approx(44, rel=0.05)
    assert counts[9_000] == pytest.approx(169, rel=0.05)
    assert gaps[len(gaps) // 2] == pytest.approx(10.0, rel=0.05)
    assert gaps[len(gaps) * 9 // 10] == pytest.approx(142.0, rel=0.1)
    assert sum(gap > 480 for gap in gaps) / len(gaps) == pytest.approx(0.041, abs=0.004)
    assert answers[len(answers) // 2] == pytest.approx(213, rel=0.05)
    assert sum(answers) / len(answers) == pytest.approx(440, rel=0.1)
    assert max(t.prompt for t in turns) <= 160_000 * 1.01


def test_lanes_ask_in_turn() -> None:
    lane = Lane(tuple(Conversation(name, 0.0, (Turn(0.0, 10, 1),) * 2) for name in "ab"))
    assert [(c.name, index) for c, index in lane.turns()] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_served_turns_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token, turn by turn."""
    seen: list[Served] = []
    serve = routers.Router.serve

    async def watched(self: routers.Router, *args: object, **named: object) -> Served:
        turn = await serve(self, *args, **named)  # type: ignore[arg-type]
        seen.append(turn)
        return turn

    monkeypatch.setattr(routers.Router, "serve", watched)
    run("auto")
    assert seen
    for turn in seen:
        assert turn.prompt == turn.computed + turn.local + turn.pulled
        assert min(turn.computed, turn.local + 1, turn.pulled + 1) >= 1
        assert turn.ttft > 0
