"""The recorded traffic in tests/data, against what was counted by hand."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

from antiphon_server.traces.prefix import Change, repeats
from antiphon_server.traces.read import read
from antiphon_server.traces.trace import Trace

DATA = Path(__file__).parents[1] / "data"


def changes(trace: Trace) -> Counter[str]:
    found = (repeat for each in trace.conversations for repeat in repeats(each, trace.block_size))
    return Counter(repeat.change for repeat in found if repeat is not None)


def test_coding_agents() -> None:
    trace = read([DATA / "coding_agents"])
    assert trace.format == "coding_agents"
    assert (trace.block_size, trace.shared_blocks, trace.estimated) == (64, False, False)
    assert len(trace.conversations) == 24
    assert sum(len(conversation.calls) for conversation in trace.conversations) == 231
    first = trace.conversations[0]
    assert (first.name, first.parent, first.fixed) == ("trace_0021", None, 12439 + 2917)
    assert [(call.prompt, call.answer, call.gap) for call in first.calls[:3]] == [
        (15485, 317, None),
        (16249, 496, 11.0),
        (20192, 347, 9.0),
    ]
    assert first.calls[0].seconds == 7.88
    assert first.calls[0].blocks is not None
    assert len(first.calls[0].blocks) == 15485 // 64


def test_what_coding_agents_repeat() -> None:
    trace = read([DATA / "coding_agents" / "trace_0021.json"])
    second = repeats(trace.conversations[0], trace.block_size)[1]
    assert second is not None
    # 241 blocks are full in the first prompt, and the second begins with all of them.
    assert (second.change, second.shared, second.new) == (Change.EXTENSION, 241 * 64, 16249 - 241 * 64)
    assert (second.held, second.dropped, second.answer) == (15485 + 317, 0, None)
    assert second.most == 15485 + 317


def test_coding_agents_that_cut_their_history() -> None:
    paths = [DATA / "coding_agents" / f"trace_{number}.json" for number in ("0036", "0228", "0427")]
    told = changes(read(paths))
    by_hand: Counter[str] = Counter()
    for path in paths:
        requests = json.loads(path.read_text())["requests"]
        for before, request in pairwise(requests):
            ids, last = request["hash_ids"], before["hash_ids"]
            same = next((i for i, (a, b) in enumerate(zip(last, ids, strict=False)) if a != b), len(last))
            whole = min(same, len(ids)) >= len(last) - 1
            shorter = request["in"] < before["in"]
            by_hand["extension" if whole else "cut" if shorter else "rewrite"] += 1
    assert told == by_hand
    assert told["cut"] + told["rewrite"] == 3


def test_swe_agent() -> None:
    trace = read([DATA / "swe_agent"])
    assert trace.format == "swe_agent"
    assert trace.estimated
    calls = {conversation.name: conversation.calls for conversation in trace.conversations}
    assert {name: len(found) for name, found in calls.items()} == {
        "6e44b9__sweagenttestrepo-1c2844": 5,
        "function_calling_simple": 5,
        "humanevalfix-python-0": 5,
    }
    path = DATA / "swe_agent" / "6e44b9__sweagenttestrepo-1c2844.traj"
    steps = json.loads(path.read_text())["trajectory"]
    gaps = [call.gap for call in calls["6e44b9__sweagenttestrepo-1c2844"]]
    assert gaps == [None, *(step["execution_time"] for step in steps)][: len(gaps)]
    assert changes(trace) == {"extension": 12}


def test_tau_bench() -> None:
    trace = read([DATA / "tau_bench"])
    assert trace.format == "messages"
    assert trace.estimated
    talks = [
        json.loads(line)["messages"] for line in (DATA / "tau_bench/airline.jsonl").read_text().splitlines()
    ]
    answers = [sum(message["role"] == "assistant" for message in talk) for talk in talks]
    assert [len(conversation.calls) for conversation in trace.conversations] == answers
    call = trace.conversations[0].calls[1]
    asked = next(i for i, m in enumerate(talks[0]) if m["role"] == "assistant" and i > 2)
    assert call.history == tuple(talks[0][:asked])
    assert call.reply == talks[0][asked]
    text = sum(len((m["content"] or "") + m["role"]) + 2 + 16 for m in talks[0][:3])
    assert trace.conversations[0].calls[0].prompt in {round(text / 4), round((text - 1) / 4), 1570}
    assert changes(trace) == {"extension": sum(answers) - len(talks)}
