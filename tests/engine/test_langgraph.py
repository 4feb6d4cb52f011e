"""A LangGraph agent over real engines: what resubmitting replies verbatim gives, and that answers stay exact.

``-s`` prints the figures that docs/performance.md tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

pytest.importorskip("langchain.agents")

from langchain_openai import ChatOpenAI

from antiphon_langgraph import chat_openai
from rig.answers import LOGPROB_TOLERANCE
from rig.fleet import UNCACHED, Pair
from rig.tool_agent import CALLS, REPORT, THOUGHT, Form, Turn, answered_cold, call, investigate

pytestmark = pytest.mark.engine

OWN = Form("calls as the template writes them", call())
THINKING = Form("thoughts, then such calls", THOUGHT + call(), THOUGHT + REPORT)
OTHERS = [
    Form("calls in compact JSON", call(",", ":")),
    Form("calls without line breaks", call(line="")),
    Form("calls forced by name", None),
]
ENOUGH = 0.98


@pytest.fixture
def router(pairs: Mapping[str, Pair]) -> str:
    """Prefill has no cache of its own: all that matches was pulled from decode."""
    return pairs[UNCACHED].router


def share(turns: Sequence[Turn]) -> float:
    """Of what decode held, how much was reused in all turns but the first."""
    return sum(turn.matched for turn in turns[1:]) / sum(turn.ideal for turn in turns[1:])


def told(form: Form, how: str, turns: Sequence[Turn]) -> None:
    parts = " ".join(f"{turn.matched}/{turn.ideal}" for turn in turns[1:])
    print(f"\n{form}, {how}: {parts} = {share(turns):.1%}")


def assert_exact(router: str, turns: Sequence[Turn]) -> None:
    """Token by token what the same request gives where nothing is reused."""
    assert len(turns) == CALLS + 1
    for turn in turns:
        cold = answered_cold(router, turn)
        assert [token for token, _ in turn.logprobs] == [token for token, _ in cold]
        gap = max(abs(ours - theirs) for (_, ours), (_, theirs) in zip(turn.logprobs, cold, strict=True))
        assert gap <= LOGPROB_TOLERANCE


def both(router: str, form: Form) -> tuple[list[Turn], list[Turn]]:
    """The turns with replies resubmitted verbatim, and as LangChain writes them again; both exact, and both
    stamped: the middleware does it for a plain ``ChatOpenAI``."""
    verbatim, rewritten = investigate(chat_openai, router, form), investigate(ChatOpenAI, router, form)
    for how, turns in (("verbatim", verbatim), ("ChatOpenAI", rewritten)):
        told(form, how, turns)
        assert_exact(router, turns)
        assert all(turn.reuse["path"] == "reuse" for turn in turns[1:])
    return verbatim, rewritten


def test_thoughts_sent_back_are_reused_and_dropped_ones_are_not(router: str) -> None:
    verbatim, rewritten = both(router, THINKING)
    assert all(turn.matched >= ENOUGH * turn.ideal for turn in verbatim[1:])
    assert share(rewritten) < 0.9


def test_calls_in_the_template_s_form_are_reused_by_both(router: str) -> None:
    """vLLM parses arguments and its template writes them again, whatever text of them the client sends."""
    for turns in both(router, OWN):
        assert all(turn.matched >= ENOUGH * turn.ideal for turn in turns[1:])


@pytest.mark.parametrize("form", OTHERS, ids=str)
def test_in_another_form_reuse_ends_at_the_last_call_with_either(router: str, form: Form) -> None:
    verbatim, rewritten = both(router, form)
    assert [turn.matched for turn in verbatim] == [turn.matched for turn in rewritten]
    assert 0.9 < share(verbatim) < ENOUGH


def test_streamed_replies_are_reused_as_well(router: str) -> None:
    turns = investigate(chat_openai, router, OWN, stream=True)
    told(OWN, "verbatim, streamed", turns)
    assert_exact(router, turns)
    assert all(turn.matched >= ENOUGH * turn.ideal for turn in turns[1:])
