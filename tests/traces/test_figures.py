"""Formats that tell by figures alone: the router's log and vLLM's benchmark."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from antiphon_server.router.logs import JsonFormatter
from antiphon_server.traces.error import TraceError
from antiphon_server.traces.prefix import Change, repeats
from antiphon_server.traces.read import read
from antiphon_server.traces.trace import Trace

Lines = Callable[..., Trace]


def turn(second: int, path: str, tokens: int, matched: int, **more: Any) -> dict[str, Any]:
    return {
        "time": f"2026-03-01T12:00:{second:02}.500Z",
        "level": "info",
        "event": "turn.served",
        "conversation": "9f86",
        "path": path,
        "reason": "full",
        "tokens": tokens,
        "matched": matched,
        "answer": 100,
        "ttft": 0.4,
        "seconds": 2.5,
        **more,
    }


def test_turn_log(lines: Lines) -> None:
    up = {"time": "2026-03-01T12:00:00.000Z", "level": "info", "event": "engine.up", "worker": "p0"}
    trace = lines(
        up,
        turn(2, "cold", 1000, 0, reason="first"),
        turn(12, "reuse", 1300, 1088, reason="full"),
        up,
        turn(20, "append", 1500, 512, reason="cut", seconds=1.5),
        turn(25, "cold", 1600, 0, reason="lost"),
        turn(30, "cold", 0, 0),
    )
    assert trace.format == "turn_log"
    (conversation,) = trace.conversations
    assert conversation.name == "9f86"
    calls = conversation.calls
    assert [(call.at, call.gap, call.seconds) for call in calls] == [
        (0.0, None, 2.5),
        (10.0, 7.5, 2.5),
        (19.0, 6.5, 1.5),
        (23.0, 2.5, 2.5),
    ]
    assert [(call.path, call.reason, call.shared, call.cached) for call in calls] == [
        ("cold", "first", None, None),
        ("reuse", "full", 1088, 1088),
        ("append", "cut", 512, 512),
        ("cold", "lost", None, None),
    ]
    first, second, third, fourth = repeats(conversation)
    assert first is None
    assert second is not None
    assert (second.change, second.held, second.shared, second.answer) == (Change.EXTENSION, 1100, 1088, 88)
    assert third is not None
    assert (third.change, third.dropped, third.new) == (Change.REWRITE, 1300 - 512, 1500 - 512)
    assert fourth is None
    assert "1 turns without the length of their prompt were left out" in trace.notes
    assert not any("could not be read" in note for note in trace.notes)


def test_log_as_the_router_writes_it(tmp_path: Path) -> None:
    said = {"msg": "turn.served", "levelname": "INFO", "path": "append"}
    records = [logging.makeLogRecord({**said, "tokens": tokens}) for tokens in (9, 10, 11)]
    path = tmp_path / "router.log"
    path.write_text("listening\n" + "".join(f"{JsonFormatter().format(each)}\n" for each in records))
    trace = read([path])
    assert [len(conversation.calls) for conversation in trace.conversations] == [1, 1, 1]
    assert "3 turns do not say how long the answer was: it counts as empty" in trace.notes


CONSTANT = {"distribution": "constant"}


def configured(**prompt: Any) -> dict[str, Any]:
    return {
        "filetype": "generate_conversations",
        "num_conversations": 3,
        "text_files": ["x.txt"],
        "prompt_input": {
            "num_turns": {**CONSTANT, "value": 6},
            "prefix_num_tokens": {**CONSTANT, "value": 1000},
            "num_tokens": {**CONSTANT, "value": 120},
            **prompt,
        },
        "prompt_output": {"num_tokens": {**CONSTANT, "value": 80}},
    }


def test_conversations_of_constant_lengths(lines: Lines) -> None:
    trace = lines(configured())
    assert trace.format == "vllm_multi_turn"
    assert len(trace.conversations) == 3
    calls = trace.conversations[0].calls
    assert [(call.prompt, call.answer, call.shared) for call in calls] == [
        (1120, 80, None),
        (1320, 80, 1200),
        (1520, 80, 1400),
    ]
    assert all(repeat and repeat.change is Change.EXTENSION for repeat in repeats(trace.conversations[0])[1:])


def test_prefix_of_all_conversations_counts_as_asked(lines: Lines) -> None:
    trace = lines(configured(common_prefix_num_tokens={**CONSTANT, "value": 500}))
    assert trace.conversations[0].calls[0].prompt == 1500
    assert "all conversations begin with the same 500 tokens" in trace.notes


@pytest.mark.parametrize(
    ("drawn", "least", "most"),
    [
        ({"distribution": "uniform", "min": 50, "max": 150}, 50, 150),
        ({"distribution": "lognormal", "average": 100, "max": 400}, 1, 400),
        ({"distribution": "lognormal", "mean": 4.6, "sigma": 0.5, "max": 1000}, 1, 1000),
        ({"distribution": "poisson", "alpha": 100}, 50, 200),
        ({"distribution": "zipf", "alpha": 1.5, "max": 300}, 1, 300),
    ],
)
def test_lengths_are_drawn_as_told_and_always_the_same(
    lines: Lines, drawn: dict[str, Any], least: int, most: int
) -> None:
    asked = {**configured(num_tokens=drawn), "num_conversations": 200}
    trace = lines(asked)
    assert trace == lines(asked)
    new = [
        call.prompt - (call.shared or 0)
        for conversation in trace.conversations
        for _, call in pairwise(conversation.calls)
    ]
    assert min(new) >= least
    assert max(new) <= most
    assert len(set(new)) > 10
    if "zipf" not in drawn["distribution"]:
        assert 80 < sum(new) / len(new) < 125


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_conversations": 0}, '"num_conversations" above 0'),
        ({"num_conversations": 10**9}, "at most 1000000"),
        ({"prompt_output": {}}, 'as "prompt_output.num_tokens"'),
        ({"prompt_output": {"num_tokens": {"distribution": "normal"}}}, "'normal'"),
        ({"prompt_output": {"num_tokens": {"distribution": "uniform", "min": 9, "max": 3}}}, '"max" from 9'),
        ({"prompt_output": {"num_tokens": {"distribution": "constant"}}}, '"value" from 0'),
    ],
)
def test_faulty_configuration_says_what_is_expected(lines: Lines, change: dict[str, Any], said: str) -> None:
    with pytest.raises(TraceError) as caught:
        lines({**configured(), **change})
    assert said in str(caught.value)
    assert json.dumps(said)
