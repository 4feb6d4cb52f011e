from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon_server.traces.error import TraceError
from antiphon_server.traces.read import FORMATS, read
from antiphon_server.traces.trace import Trace

TALK = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
SESSION = {
    "id": "s",
    "block_size": 64,
    "requests": [{"t": 0.0, "in": 100, "out": 5, "hash_ids": [1]}],
}


def put(path: Path, *documents: Any) -> Path:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


def test_format_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    assert read([put(tmp_path / "a.traj", TALK)]).format == "messages"
    assert read([put(tmp_path / "b.log", SESSION)]).format == "coding_agents"


@pytest.mark.parametrize("indent", [None, 2])
def test_whole_file_list_and_lines_are_the_same(tmp_path: Path, indent: int | None) -> None:
    lines = read([put(tmp_path / "x.jsonl", TALK, TALK)])
    (tmp_path / "x.json").write_text(json.dumps([TALK, TALK], indent=indent))
    assert read([tmp_path / "x.json"]) == lines
    assert [conversation.name for conversation in lines.conversations] == ["x-1", "x-2"]


def test_documents_of_several_lines_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "spans.json"
    path.write_text("\n".join(json.dumps(TALK, indent=4) for _ in range(3)))
    assert len(read([path]).conversations) == 3


def test_list_of_messages_is_a_conversation(tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text(json.dumps(TALK["messages"], indent=1))
    (conversation,) = read([tmp_path / "talk.json"]).conversations
    assert (conversation.name, len(conversation.calls)) == ("talk", 1)


def test_gzip_is_told_by_content(tmp_path: Path) -> None:
    plain = put(tmp_path / "x.jsonl", TALK)
    (tmp_path / "y.jsonl").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "z.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert len(read([tmp_path]).conversations) == 3


def test_folder_is_read_below_and_hidden_or_other_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "deep" / ".cache").mkdir(parents=True)
    put(tmp_path / "deep" / "a.ndjson", TALK)
    put(tmp_path / "deep" / ".cache" / "b.jsonl", TALK)
    put(tmp_path / "README.md", TALK)
    assert len(read([tmp_path]).conversations) == 1
    assert len(read([tmp_path, tmp_path / "deep" / "a.ndjson"]).conversations) == 1


def test_byte_order_mark_blank_lines_and_python_json_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    asked = '{"role": "user", "content": "\\ud83d", "score": NaN}'
    line = f'{{"messages": [{asked}, {{"role": "assistant", "content": "b"}}]}}'
    path.write_bytes(b"\xef\xbb\xbf" + f"{line}\r\n\n\r\n".encode())
    trace = read([path])
    (conversation,) = trace.conversations
    assert not any("could not be read" in note for note in trace.notes)
    assert conversation.calls[0].history is not None
    assert conversation.calls[0].history[0]["content"] == "?"


def test_broken_lines_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f"{json.dumps(TALK)}\n{{broken\n{json.dumps(TALK)}\n[1, 2\n{json.dumps(TALK)}\n")
    trace = read([path])
    assert len(trace.conversations) == 3
    (note,) = [note for note in trace.notes if "could not be read" in note]
    assert note.startswith(f"2 of 5 records could not be read, first {path}, line 2: expected JSON")


@pytest.mark.parametrize("broken", ['ssages": []}', '{"messages": [{"ro', '[{"role": "us'])
def test_first_line_may_be_broken(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f"{broken}\n{json.dumps(TALK)}\n{json.dumps(TALK)}\n")
    assert len(read([path]).conversations) == 2


def test_mostly_broken_is_an_error_that_names_the_first(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f"{json.dumps(TALK)}\n" + "{broken\n" * 2)
    with pytest.raises(TraceError, match=r"x\.jsonl, line 2: expected JSON.*2 of 3 records"):
        read([path])


def test_given_format_says_what_it_expected(tmp_path: Path) -> None:
    path = put(tmp_path / "x.jsonl", {"timestamp": 0})
    with pytest.raises(TraceError, match=r'x\.jsonl, line 1: expected \{"timestamp", "input_length"'):
        read([path], format="mooncake")


def test_unknown_format_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no format 'x': name one of turn_log, .*messages"):
        read([tmp_path], format="x")


def test_what_is_in_no_format_is_named_with_what_it_has(tmp_path: Path) -> None:
    path = put(tmp_path / "x.json", {"a": 1, "b": 2})
    with pytest.raises(
        TraceError, match=r"x\.json: this is in no format that is known: it has a, b; expected"
    ):
        read([path])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "nothing is in it: log calls into it"),
        (b"[]", "nothing is in it: log calls into it"),
        (b"3\n", "it has no objects"),
        (b"\x00\x01\x02", "this is not JSON text"),
        (b'{"messages": [', "expected JSON"),
        (b"\x1f\x8bbroken", "cannot be read"),
        (b"hello\nworld\n", "line 1: expected JSON"),
    ],
)
def test_file_without_traffic(tmp_path: Path, text: bytes, said: str) -> None:
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(TraceError, match=rf"x\.json.*{said}"):
        read([tmp_path / "x.json"])


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none: there is no such file or folder"):
        read([tmp_path / "none"])
    with pytest.raises(TraceError, match=r"no file in this folder ends in \.json, \.jsonl"):
        read([tmp_path])
    with pytest.raises(TraceError, match=r"no file was named"):
        read([])
    with pytest.raises(TraceError, match=r"bytes_per_token is 0"):
        read([put(tmp_path / "x.json", TALK)], bytes_per_token=0)


def test_blocks_of_two_formats(tmp_path: Path) -> None:
    """Their ids are not the same ones."""
    put(tmp_path / "a.jsonl", {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]})
    path = put(tmp_path / "b.json", {**SESSION, "block_size": 512, "hash_id_scope": "global"})
    trace = read([tmp_path])
    assert (trace.format, trace.block_size, trace.shared_blocks) == ("mooncake, coding_agents", 512, False)
    assert not trace.one_clock
    put(path, SESSION)
    with pytest.raises(
        TraceError, match=r"a block differ between formats \(mooncake: 512, coding_agents: 64\)"
    ):
        read([tmp_path])


def test_no_calls_is_an_error(tmp_path: Path) -> None:
    path = put(tmp_path / "x.json", {**SESSION, "requests": []})
    with pytest.raises(TraceError, match=r"no model call is in what was read \(coding_agents\)"):
        read([path])


def test_formats_that_tell_repeats_alike_are_read_together(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", TALK)
    put(tmp_path / "b.traj", {"history": TALK["messages"]})
    put(tmp_path / "package.json", {"name": "x"})
    trace = read([tmp_path])
    assert trace.format == "messages, swe_agent"
    assert len(trace.conversations) == 2
    assert any(note.startswith("1 files were left out, first ") for note in trace.notes)


def test_formats_that_do_not_are_refused(tmp_path: Path) -> None:
    first, second = put(tmp_path / "a.jsonl", TALK), put(tmp_path / "b.json", SESSION)
    with pytest.raises(
        TraceError, match=rf"{second} is coding_agents and {first} is messages: .*read them apart"
    ):
        read([tmp_path])


def test_blocks_of_two_sizes_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "a.json", SESSION)
    put(tmp_path / "b.json", {**SESSION, "block_size": 16})
    with pytest.raises(TraceError, match=r"blocks are of 16 tokens, those of .* of 64: read them apart"):
        read([tmp_path])


def test_lengths_nobody_counted_go_by_bytes(lines: Callable[..., Trace], tmp_path: Path) -> None:
    trace = lines(TALK)
    other = read([tmp_path / "log.jsonl"], bytes_per_token=1.0)
    (call,), (each,) = trace.conversations[0].calls, other.conversations[0].calls
    # "user", two line ends, one letter, and the frame.
    assert (each.prompt, call.prompt) == (4 + 2 + 1 + 16, round(23 / 4))
    assert trace.estimated


def test_each_format_has_a_line() -> None:
    assert list(FORMATS) == list(dict.fromkeys(FORMATS))
    assert all(text and "\n" not in text for text in FORMATS.values())


def test_log_of_growing_histories_is_held_once(tmp_path: Path) -> None:
    """The text of a log grows with the square of what is said in it."""
    path = tmp_path / "log.jsonl"
    said: list[Any] = []
    with path.open("w") as log:
        for index in range(200):
            said += [{"role": ("user", "assistant")[i], "content": f"{index} " + "x" * 400} for i in range(2)]
            log.write(json.dumps({"model": "m", "messages": said[:-1], "response": said[-1]}) + "\n")
    size = path.stat().st_size
    assert size > 15e6
    tracemalloc.start()
    try:
        (conversation,) = read([path]).conversations
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(conversation.calls) == 200
    assert held < size / 10
    assert peak < size / 3


@pytest.mark.parametrize("beside", [{}, {"object": "list", "has_more": False}, {"meta": {"page": 1}}])
def test_list_of_a_page_is_read(tmp_path: Path, beside: dict[str, Any]) -> None:
    path = put(tmp_path / "x.json", {"data": [TALK, TALK], **beside})
    assert [conversation.name for conversation in read([path]).conversations] == ["x-1", "x-2"]


def test_data_of_something_else_is_no_list_of_documents(tmp_path: Path) -> None:
    path = put(tmp_path / "x.json", {"data": [{"embedding": []}], **TALK})
    assert [conversation.name for conversation in read([path]).conversations] == ["x-1"]


def test_unknown_keys_are_told_with_those_that_were_expected(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match='it has an empty object; expected "messages" or a "request"'):
        read([put(tmp_path / "x.json", {})])
    for name in FORMATS:
        with pytest.raises(TraceError, match=rf"\b{name}\b"):
            read([put(tmp_path / "x.json", {})])


def test_error_says_why_no_call_is_left(lines: Callable[..., Trace]) -> None:
    failed = {"request": {"model": "m", "messages": [TALK["messages"][0]]}, "status_code": 500}
    with pytest.raises(TraceError, match=r"\(openai_log\): 2 calls that failed were left out$"):
        lines(failed, failed)
