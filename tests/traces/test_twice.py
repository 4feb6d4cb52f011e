"""What was exported twice counts once; what only looks alike counts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from antiphon_server.traces.read import read
from antiphon_server.traces.trace import Trace

DATA = Path(__file__).parent.parent / "data"
QUESTION = {"role": "user", "content": "Which files are there?"}
NEXT = {"role": "user", "content": "Name them."}


def exchange(second: int, *messages: Any, said: str = "Three.", **more: Any) -> dict[str, Any]:
    answer = {"role": "assistant", "content": said}
    return {
        "time": f"2026-03-01T12:00:{second:02}Z",
        "seconds": 2.5,
        "conversation_id": "c1",
        "request": {"model": "m", "messages": list(messages)},
        "response": {
            "choices": [{"message": answer}],
            "usage": {"prompt_tokens": 14, "completion_tokens": 3},
        },
        **more,
    }


TALK = [exchange(0, QUESTION), exchange(10, QUESTION, {"role": "assistant", "content": "Three."}, NEXT)]


def turn(second: int, **more: Any) -> dict[str, Any]:
    return {
        "time": f"2026-03-01T12:00:{second:02}.500Z",
        "level": "info",
        "event": "turn.served",
        "conversation": "9f86",
        "path": "reuse",
        "reason": "full",
        "tokens": 5200,
        "matched": 4992,
        "answer": 210,
        "seconds": 2.5,
        **more,
    }


def span(second: int, **more: Any) -> dict[str, Any]:
    return {
        "name": "chat m",
        "start_time": f"2026-03-01T12:00:{second:02}Z",
        "end_time": f"2026-03-01T12:00:{second + 2:02}Z",
        "attributes": {
            "gen_ai.operation.name": "chat",
            "gen_ai.conversation.id": "c1",
            "gen_ai.usage.input_tokens": 14,
            "gen_ai.usage.output_tokens": 3,
            **more,
        },
    }


def _read(tmp_path: Path, *files: list[dict[str, Any]]) -> Trace:
    for number, records in enumerate(files):
        (tmp_path / f"{number}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
    return read([tmp_path])


@pytest.mark.parametrize(
    "records",
    [TALK, [turn(0), turn(10)], [span(0), span(10)]],
    ids=["openai_log", "turn_log", "otel"],
)
def test_two_exports_are_read_as_one(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    (tmp_path / "once").mkdir()
    (tmp_path / "twice").mkdir()
    once = _read(tmp_path / "once", records)
    twice = _read(tmp_path / "twice", records, records[::-1])
    assert twice.conversations == once.conversations
    assert len(twice.conversations[0].calls) == 2
    note = "2 calls are in the logs more than once, alike to the last figure: they count once"
    assert [each for each in twice.notes if each not in once.notes] == [note]


def test_calls_without_a_conversation_count_once_too(tmp_path: Path) -> None:
    loose = [{name: value for name, value in each.items() if name != "conversation_id"} for each in TALK]
    ((first, second),) = (each.calls for each in _read(tmp_path, loose, loose).conversations)
    assert (first.at, second.at) == (0.0, 10.0)


@pytest.mark.parametrize(
    "other",
    [
        exchange(1, QUESTION),
        exchange(0, NEXT),
        exchange(0, QUESTION, said="Four."),
        exchange(0, QUESTION, conversation_id="c2"),
        exchange(0, QUESTION, seconds=2.6),
    ],
    ids=["time", "history", "answer", "conversation", "duration"],
)
def test_calls_that_differ_in_anything_all_count(tmp_path: Path, other: dict[str, Any]) -> None:
    trace = _read(tmp_path, [exchange(0, QUESTION), other])
    assert sum(len(each.calls) for each in trace.conversations) == 2
    assert not any("more than once" in note for note in trace.notes)


def test_calls_without_a_time_all_count(tmp_path: Path) -> None:
    # Nothing tells an export from a question that was asked again.
    asked = exchange(0, QUESTION)
    del asked["time"]
    assert len(_read(tmp_path, [asked, asked]).conversations[0].calls) == 2


def test_sessions_in_two_files_count_once(tmp_path: Path) -> None:
    session = DATA / "coding_agents" / "trace_0440.json"
    shutil.copy(session, tmp_path / "a.json")
    shutil.copy(session, tmp_path / "b.json")
    trace = read([tmp_path])
    assert trace.conversations == read([session]).conversations
    assert (
        "1 sessions are in the logs more than once, alike to the last figure: they count once" in trace.notes
    )
    longer = json.loads(session.read_text())
    longer["requests"][0]["in"] += 1
    (tmp_path / "b.json").write_text(json.dumps(longer))
    assert len(read([tmp_path]).conversations) == 2
