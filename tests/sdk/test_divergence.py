from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import Divergence
from antiphon._comparison import divergence_of
from antiphon._divergence import Kind

Message = dict[str, Any]

SYSTEM: Message = {"role": "system", "content": "You keep the shop's shelf."}
ASK: Message = {"role": "user", "content": "How many hinges for 5 €?"}
CALL: Message = {
    "role": "assistant",
    "content": "",
    "reasoning": "The shelf knows.",
    "tool_calls": [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "stock", "arguments": '{"item":"hinges","note":"f\\u00fcr 5 €"}'},
        }
    ],
}
RESULT: Message = {"role": "tool", "tool_call_id": "c1", "content": '{"pieces": 12}'}
ANSWER: Message = {"role": "assistant", "content": "There are twelve."}
MORE: Message = {"role": "user", "content": "And bolts?"}
HISTORY = [SYSTEM, ASK, CALL, RESULT]
NEXT = [*HISTORY, ANSWER, MORE]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("stock", "price")]


def body(messages: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def reply(*messages: Message) -> bytes:
    return json.dumps(
        {"choices": [{"index": i, "message": each} for i, each in enumerate(messages)]}
    ).encode()


def compared(now: Any, was: Any = HISTORY, **how: Any) -> Divergence:
    found = divergence_of(body(was), body(now), **how)
    assert found is not None
    return found


def edited(index: int, **fields: Any) -> list[Message]:
    """The next turn's messages with one of them changed."""
    messages = deepcopy(NEXT)
    messages[index].update(fields)
    return [{name: value for name, value in message.items() if value is not ...} for message in messages]


def called(arguments: Any) -> list[Message]:
    calls = deepcopy(CALL["tool_calls"])
    calls[0]["function"]["arguments"] = arguments
    return edited(2, tool_calls=calls)


ARGUMENTS = "tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    ("messages", "kind", "index", "role", "path"),
    [
        (called('{"item": "hinges", "note": "für 5 €"}'), Kind.ARGUMENTS, 2, "assistant", ARGUMENTS),
        (called('{"item":"hinges","note":"für 5 €"}'), Kind.UNICODE, 2, "assistant", ARGUMENTS),
        (called('{"item":"bolts"}'), Kind.EDITED, 2, "assistant", ARGUMENTS),
        (called(None), Kind.FIELD, 2, "assistant", ARGUMENTS),
        (edited(2, tool_calls=...), Kind.FIELD, 2, "assistant", "tool_calls"),
        (edited(2, tool_calls=CALL["tool_calls"] * 2), Kind.FIELD, 2, "assistant", "tool_calls[1]"),
        (edited(2, reasoning=...), Kind.REASONING, 2, "assistant", "reasoning"),
        (edited(2, reasoning="Shorter."), Kind.EDITED, 2, "assistant", "reasoning"),
        (edited(2, reasoning=..., tool_calls=...), Kind.REASONING, 2, "assistant", "reasoning"),
        (edited(2, content=None), Kind.NULLED, 2, "assistant", "content"),
        (edited(2, content=...), Kind.NULLED, 2, "assistant", "content"),
        (edited(3, content='{"pieces":12}'), Kind.RESERIALISED, 3, "tool", "content"),
        (edited(3, content="[cleared]"), Kind.EDITED, 3, "tool", "content"),
        (edited(3, content=["a", "b"]), Kind.FIELD, 3, "tool", "content"),
        (edited(3, tool_call_id="other"), Kind.FIELD, 3, "tool", "tool_call_id"),
        (edited(1, secret_field="x"), Kind.FIELD, 1, "user", ""),
        (edited(0, content="It is 12:01."), Kind.EDITED, 0, "system", "content"),
        (edited(0, role="developer"), Kind.FIELD, 0, "developer", "role"),
        ([SYSTEM, ANSWER, MORE], Kind.REMOVED, 1, "user", ""),
        ([SYSTEM, RESULT, ANSWER, MORE], Kind.REMOVED, 1, "user", ""),
        ([SYSTEM, {"role": "user", "content": "In short: ..."}, RESULT, MORE], Kind.REMOVED, 1, "user", ""),
        ([SYSTEM, ASK], Kind.REMOVED, 2, "assistant", ""),
        ([*HISTORY, MORE], Kind.REMOVED, 4, "assistant", ""),
        ([SYSTEM, MORE, *NEXT[1:]], Kind.INSERTED, 1, "user", ""),
        ([{**SYSTEM, "content": "Other."}, ANSWER, RESULT], Kind.EDITED, 0, "system", "content"),
        ([SYSTEM, CALL, ASK, *NEXT[3:]], Kind.REORDERED, 1, "assistant", ""),
        ([{"role": "user", "content": "Sum up."}], Kind.REMOVED, 0, "system", ""),
    ],
)  # fmt: skip
def test_first_message_that_differs_is_named_with_what_differs(
    messages: list[Message], kind: Kind, index: int, role: str, path: str
) -> None:
    found = compared(messages)
    assert (found.kind, found.part, found.index, found.role, found.path) == (
        kind,
        "messages",
        index,
        role,
        path,
    )


@pytest.mark.parametrize(
    ("field", "was", "now", "kind"),
    [
        ("model", "m", "other", Kind.MODEL),
        ("cache_salt", None, "s", Kind.SALT),
        ("tools", TOOLS, TOOLS[::-1], Kind.TOOLS_REORDERED),
        ("tools", [{"a": 1, "b": 2}], [{"b": 2, "a": 1}], Kind.TOOLS_REORDERED),
        ("tools", TOOLS, TOOLS[:1], Kind.TOOLS),
        ("tools", None, TOOLS, Kind.TOOLS),
        ("tools", "none", TOOLS, Kind.TOOLS),
        ("chat_template_kwargs", {"enable_thinking": True}, {}, Kind.OPTIONS),
        ("reasoning_effort", "low", "high", Kind.OPTIONS),
    ],
)
def test_what_frames_the_messages_is_compared_too(field: str, was: Any, now: Any, kind: Kind) -> None:
    found = divergence_of(body(HISTORY, **{field: was}), body(NEXT, **{field: now}))
    assert found is not None
    assert (found.kind, found.part, found.index) == (kind, field, None)
    assert str(found).startswith(field)


def test_message_that_is_said_again_is_no_sign_of_an_inserted_one() -> None:
    changed = {**SYSTEM, "content": "It is 12:01."}
    assert compared([changed, ANSWER, MORE], [SYSTEM, MORE]).where == "messages[0].content (system)"
    assert compared([changed, CALL, MORE], [MORE, ASK]).kind is Kind.REMOVED


def test_calls_that_are_made_again_and_again_are_told_apart() -> None:
    def polled(times: int, arguments: str = "{}") -> list[Message]:
        function = {"name": "poll", "arguments": arguments}
        calls = [{"id": f"c{place}", "type": "function", "function": function} for place in range(times)]
        pairs = [
            [{"role": "assistant", "tool_calls": [c]}, {**RESULT, "tool_call_id": c["id"]}] for c in calls
        ]
        return [ASK, *(message for pair in pairs for message in pair)]

    found = compared(
        [*polled(2, '{"a":1}')[:3], *polled(9)[3:]], [*polled(2, '{"a": 1}')[:3], *polled(7)[3:]]
    )
    assert (found.kind, found.index) == (Kind.ARGUMENTS, 1)
    back = compared([*polled(2, '{"a":1}')[:3], *polled(9)[3:]], polled(7))
    assert (back.kind, back.index) == (Kind.EDITED, 1)
    summed_up = [{"role": "user", "content": "In short: ..."}, *polled(9)[9:]]
    assert compared(summed_up, polled(7)).kind is Kind.REMOVED


def test_text_that_comes_again_later_is_told_from_the_one_that_was_edited() -> None:
    yes, no = ({"role": "user", "content": word} for word in ("yes", "no"))
    found = compared([SYSTEM, yes, ANSWER, yes, CALL], [SYSTEM, no, ANSWER, yes])
    assert (found.kind, found.index) == (Kind.EDITED, 1)


def test_tools_explain_more_than_messages_and_these_more_than_options() -> None:
    changed = edited(1, content="other")
    found = divergence_of(body(HISTORY, tools=TOOLS), body(changed))
    assert found is not None
    assert found.kind is Kind.TOOLS
    found = divergence_of(body(HISTORY), body(changed, reasoning_effort="low"))
    assert found is not None
    assert found.kind is Kind.EDITED


@pytest.mark.parametrize(
    "now",
    [
        NEXT,
        [{**message, "cache_control": {"type": "ephemeral"}} for message in NEXT],
        [{**message, "refusal": None, "annotations": [], "audio": None} for message in NEXT],
        edited(1, content=[{"type": "text", "text": ASK["content"], "cache_control": {"type": "ephemeral"}}]),
        [
            {"reasoning_content" if name == "reasoning" else name: value for name, value in each.items()}
            for each in NEXT
        ],
        HISTORY,
    ],
)
def test_what_no_template_renders_is_no_difference(now: list[Message]) -> None:
    assert divergence_of(body(HISTORY), body(now), intact=True) is None


def test_what_hardly_any_template_renders_explains_only_where_nothing_else_does() -> None:
    nulled = edited(2, content=None)
    assert compared(nulled, differs=True).kind is Kind.NULLED
    assert compared(nulled, differs=True, intact=True).kind is Kind.ANSWER
    assert compared(nulled, reply=reply({"role": "assistant", "content": "Other."})).kind is Kind.EDITED


@pytest.mark.parametrize(
    ("sent", "kind", "path"),
    [
        ({**CALL, "reasoning": None}, Kind.REASONING, "reasoning"),
        ({**CALL, "content": None}, Kind.NULLED, "content"),
        (called('{"item": "hinges", "note": "für 5 €"}')[2], Kind.ARGUMENTS, ARGUMENTS),
        (ANSWER, Kind.REASONING, "reasoning"),
        (MORE, Kind.REMOVED, ""),
    ],
)
def test_answer_is_compared_with_the_whole_reply(sent: Message, kind: Kind, path: str) -> None:
    came = {**CALL, "refusal": None, "function_call": None, "provider_field": 1}
    found = compared([SYSTEM, ASK, sent, RESULT], [SYSTEM, ASK], reply=reply(came))
    assert (found.kind, found.index, found.role, found.path) == (kind, 2, "assistant", path)


def test_answer_may_be_any_choice_of_the_reply() -> None:
    assert divergence_of(body(HISTORY), body(NEXT), reply(CALL, ANSWER)) is None
    assert compared(NEXT, reply=reply(CALL, MORE)).kind is Kind.REASONING


def test_what_does_not_show_is_deduced_where_tokens_differ() -> None:
    assert divergence_of(body(HISTORY), body(NEXT)) is None
    streamed = compared(NEXT, differs=True)
    assert (streamed.kind, streamed.index, streamed.role) == (Kind.ANSWER, 4, "assistant")
    assert compared(NEXT, differs=True, intact=True) == streamed
    early = compared(NEXT, differs=True, intact=False)
    assert (early.kind, early.index) == (Kind.RENDERED, None)
    assert compared(NEXT, differs=True, intact=True, reply=reply(ANSWER)).kind is Kind.RENDERED


def test_same_prompt_again_explains_nothing() -> None:
    assert divergence_of(body(HISTORY), body(HISTORY), differs=True) is None


COMPLETION = b'{"choices": [{"text": " four"}]}'


@pytest.mark.parametrize(
    ("was", "now", "how", "kind", "role"),
    [
        ("one two", "one too three", {}, Kind.EDITED, None),
        ("one two", "one", {}, Kind.REMOVED, None),
        ('["\\u00fc"]', '["ü"]', {}, Kind.UNICODE, None),
        ("one two", "one two three", {"differs": True}, Kind.ANSWER, None),
        ("one two", "one two three", {"reply": COMPLETION}, Kind.EDITED, "assistant"),
        ([1, 2], [1, 3, 4], {}, Kind.EDITED, None),
        ([[1, 2]], [1, 2, 3], {"differs": True}, Kind.ANSWER, None),
    ],
)
def test_prompts_of_completions_are_compared(
    was: Any, now: Any, how: Any, kind: Kind, role: str | None
) -> None:
    found = divergence_of(*(json.dumps({"prompt": each}).encode() for each in (was, now)), **how)
    assert found is not None
    assert (found.kind, found.part, found.index, found.role) == (kind, "prompt", None, role)


@pytest.mark.parametrize(
    ("was", "now", "how"),
    [
        ("one two", "one two four", {"reply": COMPLETION, "differs": True}),
        ("one two", "one two", {"differs": True}),
        ("one two", "one two three", {}),
        ([1, 2], "one two", {"differs": True}),
        ([1, 2], [1, 2, 3], {"reply": COMPLETION}),
        (["a", "b"], ["a", "b", "c"], {"differs": True}),
        (None, "one", {"differs": True}),
    ],
)
def test_prompts_that_go_on_or_cannot_be_compared_show_nothing(was: Any, now: Any, how: Any) -> None:
    assert divergence_of(*(json.dumps({"prompt": each}).encode() for each in (was, now)), **how) is None


def items(*given: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "input": list(given), **more}).encode()


THOUGHT: Message = {"type": "reasoning", "id": "r1", "content": [{"type": "reasoning_text", "text": "Hm."}]}
ITEM: Message = {"type": "function_call", "call_id": "c1", "name": "stock", "arguments": '{"item":"hinges"}'}
OUTPUT: Message = {"type": "function_call_output", "call_id": "c1", "output": "12"}
SAID: Message = {
    "type": "message",
    "id": "m1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Twelve.", "annotations": []}],
}


def test_responses_are_compared_item_by_item() -> None:
    asked = json.dumps({"model": "m", "input": ASK["content"]}).encode()
    output = json.dumps({"output": [THOUGHT, ITEM]}).encode()
    assert divergence_of(asked, items(ASK, THOUGHT, ITEM, OUTPUT), output) is None

    dropped = divergence_of(asked, items(ASK, ITEM, OUTPUT), output)
    assert dropped is not None
    assert (dropped.kind, dropped.part, dropped.index) == (Kind.REASONING, "input", 1)

    rewritten = {**ITEM, "arguments": '{"item": "hinges"}'}
    other = divergence_of(asked, items(ASK, THOUGHT, rewritten, OUTPUT), output)
    assert other is not None
    assert (other.kind, other.index, other.role, other.path) == (
        Kind.ARGUMENTS,
        2,
        "function_call",
        "arguments",
    )

    before = items(ASK, THOUGHT, ITEM, OUTPUT)
    later = divergence_of(before, items(ASK, ITEM, OUTPUT, SAID, MORE))
    assert later is not None
    assert (later.kind, later.index, later.role) == (Kind.REASONING, 1, "reasoning")
    plain = {"role": "assistant", "content": "Twelve."}
    assert divergence_of(before, items(ASK, THOUGHT, ITEM, OUTPUT, plain), items() + b" ") is None
    assert (
        divergence_of(
            before, items(ASK, THOUGHT, ITEM, OUTPUT, plain), json.dumps({"output": [SAID]}).encode()
        )
        is None
    )


def test_instructions_and_system_texts_are_compared_before_the_messages() -> None:
    found = divergence_of(items(ASK, instructions="It is 12:00."), items(MORE, instructions="It is 12:01."))
    assert found is not None
    assert (found.kind, found.where) == (Kind.EDITED, "instructions (system)")
    assert "clock" in str(found)

    blocks = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "It is 12:00."}]
    later = [blocks[0], {**blocks[1], "text": "It is 12:01."}]
    found = divergence_of(body([ASK], system=blocks), body([ASK, ANSWER, MORE], system=later))
    assert found is not None
    assert (found.kind, found.where) == (Kind.EDITED, "system[1].text (system)")


USE: Message = {"type": "tool_use", "id": "t1", "name": "stock", "input": {"item": "hinges", "near": True}}


@pytest.mark.parametrize(
    ("content", "kind", "path"),
    [
        ([USE], Kind.REASONING, "reasoning"),
        ([{"type": "thinking", "thinking": "Hm."}], Kind.FIELD, "content"),
        (
            [
                {"type": "thinking", "thinking": "Hm."},
                {**USE, "input": {"near": True, "item": "hinges"}},
            ],
            Kind.ARGUMENTS,
            "content[0].input",
        ),
    ],
)
def test_messages_surface_is_compared_block_by_block(content: Any, kind: Kind, path: str) -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    came = json.dumps({"role": "assistant", "content": [thought, USE]}).encode()
    sent = {"role": "assistant", "content": content}
    outcome = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "12"}]}
    found = divergence_of(body([ASK]), body([ASK, sent, outcome]), came)
    assert found is not None
    assert (found.kind, found.index, found.path) == (kind, 1, path)
    verbatim = {"role": "assistant", "content": [thought, USE]}
    assert divergence_of(body([ASK]), body([ASK, verbatim, outcome]), came) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b"\xff\xfe\xfd", b"{"),
        (b"[]", b"1"),
        (body(HISTORY), b"{}"),
        (body(HISTORY), items(ASK)),
        (items(ASK), items(MORE, previous_response_id="r")),
        (body([1, 2]), body(HISTORY)),
        (body(HISTORY), b"[" * 100_000),
    ],
)
def test_bodies_that_cannot_be_compared_show_nothing(before: bytes, after: bytes) -> None:
    assert divergence_of(before, after, b"no JSON", differs=True) is None


def test_nesting_beyond_reason_shows_nothing() -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    assert divergence_of(body([{"role": "user", "content": deep}]), body([{"content": [deep]}])) is None


def test_every_kind_says_where_and_what_to_do_without_words_of_the_conversation() -> None:
    for kind in Kind:
        for role in ("system", "user", "assistant", "tool"):
            found = Divergence(kind, "messages", 3, role, "content", "SECRET", "SECRET")
            said = str(found)
            assert said.startswith(f"messages[3].content ({role}) ")
            assert said.endswith(".")
            assert said.count(". ") <= 3
            assert "SECRET" not in said + repr(found)
    found = compared(called('{"item": "SECRET"}'))
    assert "SECRET" in found.after
    assert "SECRET" not in str(found) + repr(found)


def test_excerpts_are_short_and_show_the_difference() -> None:
    found = compared(edited(1, content="a" * 500 + "b" * 500), [SYSTEM, {**ASK, "content": "a" * 1000}])
    assert (found.before, found.after) == ("a" * 40, "a" * 12 + "b" * 28)
    named = compared([{"role": "SECRET", "content": "a"}], [{"role": "SECRET", "content": "b"}])
    assert "SECRET" not in str(named) + repr(named)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "tool_calls",
                    "function",
                    "arguments",
                    "reasoning",
                    "type",
                    "thinking",
                    "x",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
REQUEST = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("model", "tools", "system", "input", "prompt"), JSON)
    | {
        "messages": st.lists(
            st.dictionaries(st.sampled_from(["role", "content", "tool_calls"]), JSON), max_size=4
        )
    },
)
REPLY = JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(("choices", "output", "content"), JSON))


@given(before=REQUEST, after=REQUEST, reply=REPLY, differs=st.booleans(), intact=st.none() | st.booleans())
def test_no_json_whatever_is_too_strange(
    before: Any, after: Any, reply: Any, differs: bool, intact: bool | None
) -> None:
    raw = [json.dumps(each).encode() for each in (before, after, reply)]
    found = divergence_of(*raw, differs=differs, intact=intact)
    assert found is None or len(str(found)) < 400
    if found is not None:
        assert len(found.before) <= 40
        assert len(found.after) <= 40
    assert divergence_of(raw[0], raw[0]) is None or b"NaN" in raw[0]
