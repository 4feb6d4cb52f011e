"""Conversations and trajectories."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from antiphon_server.traces.error import TraceError
from antiphon_server.traces.trace import Trace

Lines = Callable[..., Trace]
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Which files?"}
SAID = {"role": "assistant", "content": "Three."}


def test_greeting_is_no_call(lines: Lines) -> None:
    (conversation,) = lines({"messages": [SAID, USER, SAID]}).conversations
    assert [call.history for call in conversation.calls] == [(SAID, USER)]


def test_what_follows_the_last_answer_is_no_call(lines: Lines) -> None:
    (conversation,) = lines({"messages": [SYSTEM, USER, SAID, USER]}).conversations
    assert [call.history for call in conversation.calls] == [(SYSTEM, USER)]


def test_results_of_tau_bench_are_named_by_their_task(lines: Lines) -> None:
    result = {"task_id": 3, "reward": 1.0, "info": {}, "traj": [USER, SAID], "trial": 0}
    assert [c.name for c in lines(result, {**result, "trial": 1}).conversations] == ["3", "3#2"]


def test_lines_that_grow_may_be_requests(lines: Lines) -> None:
    growing = [{"messages": [SYSTEM, *[USER, SAID] * n]} for n in (1, 2, 3)]
    (note,) = [note for note in lines(*growing).notes if "openai_log" in note]
    assert note.startswith("2 conversations go on from another one")
    other = {"messages": [SYSTEM, {**USER, "content": "x"}, SAID]}
    assert not any("openai_log" in note for note in lines(other, growing[1]).notes)


def test_tools_of_a_conversation(lines: Lines) -> None:
    trace = lines({"messages": [USER, SAID], "tools": [{"name": "ls"}]})
    assert trace.conversations[0].calls[0].tools == ({"name": "ls"},)


def test_step_says_what_it_asked_and_how_long_its_tool_took(lines: Lines) -> None:
    steps = [
        {"query": [SYSTEM, USER], "response": "ls", "observation": "a", "execution_time": 0.5},
        {"query": [SYSTEM, {**USER, "content": "(cut)"}], "response": "submit", "observation": ""},
    ]
    trace = lines({"trajectory": steps, "history": []}, name="run.traj")
    (conversation,) = trace.conversations
    assert conversation.name == "run"
    first, second = conversation.calls
    assert first.history == (SYSTEM, USER)
    assert first.reply == {"role": "assistant", "content": "ls"}
    assert (first.gap, second.gap) == (None, 0.5)
    assert not any("do not keep their requests" in note for note in trace.notes)


def test_demonstration_is_prompt_but_no_call(lines: Lines) -> None:
    shown = [{**USER, "is_demo": True}, {**SAID, "is_demo": True, "thought": "x"}]
    (conversation,) = lines({"history": [SYSTEM, *shown, USER, {**SAID, "agent": ""}]}).conversations
    assert [call.history for call in conversation.calls] == [(SYSTEM, USER, SAID, USER)]


def test_each_agent_of_a_run_is_a_conversation(lines: Lines) -> None:
    own, sub = ([{**m, "agent": name} for m in (SYSTEM, USER, SAID)] for name in ("main", "sub"))
    trace = lines({"history": [*own, *sub]}, name="run.traj")
    assert [(c.name, c.parent, len(c.calls)) for c in trace.conversations] == [
        ("run", None, 1),
        ("run/sub", "run", 1),
    ]


def test_steps_without_history_say_what_is_missing(lines: Lines) -> None:
    with pytest.raises(TraceError, match=r'expected a "history" of messages, as no step has its "query"'):
        lines({"trajectory": [{"response": "x", "observation": "y"}]})
