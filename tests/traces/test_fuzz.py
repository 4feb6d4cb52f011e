"""Whatever a file holds, it is read, or refused with a TraceError."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon_server.traces.error import TraceError
from antiphon_server.traces.pool import Pool
from antiphon_server.traces.prefix import repeats
from antiphon_server.traces.read import FORMATS, read
from antiphon_server.traces.trace import Call, Conversation, Trace

DOCS = (Path(__file__).parents[2] / "docs" / "traces.md").read_text()
EXAMPLES = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", DOCS, re.DOTALL)]
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["[", "{", '{"role": 3}', "9" * 400, "1e999", "0001-01-01T00:00:00", "user", "assistant"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for name, item in value.items():
            yield from places(item, (*path, name))
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """One of the examples, with a few of its values replaced or taken out."""
    value = [copy.deepcopy(draw(st.sampled_from(EXAMPLES)))]
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from([p for p in places(value) if p]))
        within: Any = value
        for name in path[:-1]:
            within = within[name]
        if isinstance(within, dict) and draw(st.booleans()):
            del within[path[-1]]
        else:
            within[path[-1]] = draw(ODD)
    return value[0] if value else None


def is_sound(trace: Trace) -> None:
    assert trace.conversations
    for conversation in trace.conversations:
        assert conversation.calls
        assert conversation.calls[0].gap is None
        for call in conversation.calls:
            assert call.prompt >= 0
            assert call.answer >= 0
            for told in (call.at, call.gap, call.seconds, call.ttft, call.shared, call.cached):
                assert told is None or told >= 0
        for call, repeat in zip(conversation.calls, repeats(conversation, trace.block_size), strict=True):
            if repeat is not None:
                assert 0 <= repeat.shared <= min(call.prompt, repeat.held)
                assert repeat.shared <= repeat.most <= min(call.prompt, repeat.held)
                assert repeat.new == call.prompt - repeat.shared
                assert 0 <= repeat.dropped <= repeat.held
                assert repeat.answer is None or 0 <= repeat.answer <= repeat.shared


def is_read_or_refused(path: Path, name: str | None = None) -> None:
    """Refused with words that say where."""
    try:
        trace = read([path], format=name)
    except TraceError as error:
        refused = str(error)
    else:
        is_sound(trace)
        return
    assert str(path) in refused or "no model call is in what was read" in refused


@QUICK
@given(document=mutated())
def test_mutated_example(document: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(document) + "\n" + json.dumps(document) + "\n")
    is_read_or_refused(path)


@pytest.mark.parametrize("format", FORMATS)
@settings(QUICK, max_examples=40)
@given(documents=st.lists(mutated() | ODD, max_size=4))
def test_anything_read_as_any_format(format: str, documents: list[Any], tmp_path: Path) -> None:  # noqa: A002
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    is_read_or_refused(path, format)


@QUICK
@given(
    text=st.binary(max_size=60)
    | st.builds(
        lambda document, at, put: (
            (raw := json.dumps(document).encode())[: at % len(raw)] + put + raw[at % len(raw) :]
        ),
        st.sampled_from(EXAMPLES),
        st.integers(0, 10**6),
        st.binary(max_size=3),
    )
)
def test_damaged_bytes(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text)
    is_read_or_refused(path)


def test_deep_nesting(tmp_path: Path) -> None:
    for text in ("[" * 100_000, '{"messages": ' + "[" * 50_000 + "]" * 50_000 + "}", '{"a":' * 50_000):
        path = tmp_path / "x.json"
        path.write_text(text + "\n")
        with pytest.raises(TraceError):
            read([path])


MESSAGES = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["system", "user", "assistant"]),
    st.sampled_from(["", "a", "ab", "b" * 50, None]),
)


@st.composite
def spoken(draw: st.DrawFn) -> Conversation:
    pool = Pool()
    calls = []
    for _ in range(draw(st.integers(1, 4))):
        history = pool.all(draw(st.lists(MESSAGES, max_size=4)))
        reply = draw(st.none() | MESSAGES)
        calls.append(Call(draw(st.integers(0, 500)), draw(st.integers(0, 99)), history=history, reply=reply))
    return Conversation("c", tuple(calls))


@st.composite
def in_blocks(draw: st.DrawFn) -> Conversation:
    ids = st.lists(st.integers(0, 3), max_size=5)
    calls = st.builds(
        lambda p, a, b: Call(p, a, blocks=tuple(b)), st.integers(0, 99), st.integers(0, 99), ids
    )
    return Conversation("c", tuple(draw(st.lists(calls, min_size=1, max_size=4))))


@st.composite
def in_figures(draw: st.DrawFn) -> Conversation:
    tokens = st.integers(0, 2000)
    calls = st.builds(lambda p, a, s: Call(p, a, shared=s), tokens, tokens, st.none() | tokens)
    return Conversation("c", tuple(draw(st.lists(calls, min_size=1, max_size=4))))


@QUICK
@given(conversation=spoken() | in_blocks() | in_figures())
def test_what_repeats_is_sound(conversation: Conversation) -> None:
    is_sound(Trace("x", (conversation,), block_size=16))
    is_sound(Trace("x", (conversation,)))
