"""Formats that tell by ids of blocks what repeats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon_server.traces.error import TraceError
from antiphon_server.traces.prefix import repeats
from antiphon_server.traces.read import read
from antiphon_server.traces.trace import Trace

Lines = Callable[..., Trace]


def asked(t: float, blocks: list[int], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "model": "m", "in": 64 * len(blocks), "out": 5, "hash_ids": blocks, **more}


def session(*requests: Any, **more: Any) -> dict[str, Any]:
    return {"id": "s", "block_size": 64, "hash_id_scope": "local", "requests": list(requests), **more}


def test_gap_is_think_time_else_what_the_answer_did_not_take(lines: Lines) -> None:
    trace = lines(
        session(
            asked(0.0, [1], api_time=2.0, think_time=9.0),
            asked(5.0, [1, 2], api_time=1.0, think_time=2.5),
            asked(10.0, [1, 2, 3]),
            asked(20.0, [1, 2, 3, 4]),
        )
    )
    assert [call.gap for call in trace.conversations[0].calls] == [None, 2.5, 4.0, 10.0]
    assert "1 gaps hold the answer before them, too: nothing says how long it took" in trace.notes


def test_models_and_sub_agents_are_conversations(lines: Lines) -> None:
    inner = [asked(0.0, [7, 8]), asked(4.0, [7, 8, 9])]
    agent = {
        "t": 6.0,
        "type": "subagent",
        "agent_id": "a",
        "requests": inner,
        "tool_tokens": 64,
        "system_tokens": 0,
    }
    other = asked(3.0, [5], model="small")
    trace = lines(
        session(asked(0.0, [1]), other, agent, asked(20.0, [1, 2]), tool_tokens=30, system_tokens=34)
    )
    assert [(c.name, c.parent, c.fixed, [call.at for call in c.calls]) for c in trace.conversations] == [
        ("s/1", "s", 64, [6.0, 10.0]),
        ("s", None, 64, [0.0, 20.0]),
        ("s/small", "s", None, [3.0]),
    ]


def test_sub_agents_may_tell_the_session_s_time(lines: Lines) -> None:
    agent = {"t": 6.0, "type": "subagent", "requests": [asked(6.5, [7]), asked(8.0, [7, 8])]}
    trace = lines(session(asked(0.0, [1]), agent))
    assert [call.at for call in trace.conversations[0].calls] == [6.5, 8.0]


def test_sessions_are_not_of_one_clock_though_their_sub_agents_begin_later(lines: Lines) -> None:
    agent = {"t": 6.0, "type": "subagent", "requests": [asked(0.0, [7])]}
    own = session(asked(0.0, [1]), agent)
    alone, two = lines(own), lines(own, session(asked(0.0, [2])))
    note = "each session's times begin at 0: they do not tell which sessions ran at once"
    assert (alone.one_clock, note in alone.notes) == (True, False)
    assert (two.one_clock, note in two.notes) == (False, True)


def test_ids_mean_the_same_everywhere_only_where_all_say_so(lines: Lines) -> None:
    common = session(asked(0.0, [1]), hash_id_scope="global")
    assert lines(common, session(asked(0.0, [2]), hash_id_scope="global")).shared_blocks
    trace = lines(common, session(asked(0.0, [1])))
    assert not trace.shared_blocks
    assert any("what sessions share is not known" in note for note in trace.notes)
    assert [conversation.name for conversation in trace.conversations] == ["s", "s#2"]


def test_requests_without_what_is_needed_are_left_out(lines: Lines) -> None:
    faulty = [asked(0.0, [1], **{"in": None}), asked(0.0, [1], out=-1), {"t": 0.0}, asked(0.0, [1.5]), 3]  # type: ignore[list-item]
    trace = lines(session(asked(0.0, [1]), *faulty))
    assert len(trace.conversations[0].calls) == 1
    assert "5 requests without t, in, out or hash_ids were left out" in trace.notes


def mooncake(at: int, prompt: int, blocks: list[int]) -> dict[str, Any]:
    return {"timestamp": at, "input_length": prompt, "output_length": 10, "hash_ids": blocks}


def test_requests_are_chained_where_blocks_go_on(lines: Lines) -> None:
    trace = lines(
        mooncake(0, 1200, [0, 1, 2]),  # two full blocks and one that is not
        mooncake(1000, 1300, [9, 10, 11]),
        mooncake(3000, 2000, [0, 1, 20, 21]),  # goes on from the first
        mooncake(
            9000, 2600, [0, 1, 20, 30, 31, 32]
        ),  # shares three of its blocks: of its three full ones all
        mooncake(10000, 1100, [0, 40, 41]),  # shares one block only
    )
    assert trace.format == "mooncake"
    assert (trace.block_size, trace.shared_blocks) == (512, True)
    assert [[call.at for call in c.calls] for c in trace.conversations] == [[0.0, 3.0, 9.0], [1.0], [10.0]]
    assert [call.gap for call in trace.conversations[0].calls] == [None, 3.0, 6.0]
    assert "which gave 3 conversations" in trace.notes[0]


def test_what_is_only_a_system_prompt_chains_nothing(lines: Lines) -> None:
    """The second has nothing of its own before its last block, so the third does not go on from it."""
    trace = lines(
        mooncake(0, 1600, [0, 1, 2, 3]), mooncake(1000, 1100, [0, 1, 5]), mooncake(2000, 1700, [0, 1, 6, 7])
    )
    assert [len(conversation.calls) for conversation in trace.conversations] == [1, 1, 1]


def test_ids_of_two_files_are_not_the_same(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(
            '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}\n'
        )
    trace = read([tmp_path])
    assert (trace.shared_blocks, trace.one_clock) == (False, False)
    assert [(c.name, c.guessed) for c in trace.conversations] == [("a-1", True), ("b-1", True)]
    assert read([tmp_path / "a.jsonl"]).one_clock


def test_sessions_of_mooncake_are_conversations(lines: Lines) -> None:
    """Blocks of different sessions that go on from each other's, and one's that do not, change nothing."""
    trace = lines(
        {**mooncake(0, 1200, [0, 1, 2]), "session_id": "a"},
        {**mooncake(500, 1900, [0, 1, 2, 3]), "session_id": "b"},
        {**mooncake(9000, 1500, [7, 8, 9]), "session_id": "a"},
    )
    assert [(c.name, c.guessed, len(c.calls)) for c in trace.conversations] == [
        ("a", False, 2),
        ("b", False, 1),
    ]
    assert [call.gap for call in trace.conversations[0].calls] == [None, 9.0]
    assert not any("names no conversations" in note for note in trace.notes)


def test_rows_of_a_session_without_blocks_add_to_its_last_prompt(lines: Lines) -> None:
    row = {"session_id": 1, "input_length": 150, "output_length": 20}
    trace = lines(
        {**row, "input_length": 700, "hash_ids": [1, 2]}, {**row, "delay": 2000}, {**row, "delay": 500}
    )
    (conversation,) = trace.conversations
    assert [(call.prompt, call.shared, call.gap) for call in conversation.calls] == [
        (700, None, None),
        (870, 720, 2.0),
        (1040, 890, 0.5),
    ]
    found = [r.shared for r in repeats(conversation, trace.block_size) if r is not None]
    assert found == [720, 890]
    assert trace.notes == (
        "2 rows have no hash_ids: their length is taken to be what a turn adds to the last prompt and its "
        "answer",
    )


def test_rows_without_a_session_need_time_and_blocks(lines: Lines) -> None:
    for name in ("timestamp", "hash_ids"):
        row = {key: value for key, value in mooncake(0, 600, [0, 1]).items() if key != name}
        with pytest.raises(TraceError, match=r'"timestamp", .* or "session_id"'):
            lines(row, format="mooncake")


def test_time_of_mooncake_far_from_the_others_counts_as_none(lines: Lines) -> None:
    rows = [mooncake(at, 600, [i, i + 1]) for i, at in enumerate((0, 1000, 10**300))]
    trace = lines(*rows)
    assert sorted(str(call.at) for c in trace.conversations for call in c.calls) == ["0.0", "1.0", "None"]
    assert "1 rows have a time more than a year from most others' and count as without" in trace.notes


def test_size_of_blocks_is_needed(lines: Lines) -> None:
    with pytest.raises(TraceError, match=r'line 1: expected \{"id", "block_size"'):
        lines({**session(asked(0.0, [1])), "block_size": 0})
