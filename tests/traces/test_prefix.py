from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from antiphon_server.traces.pool import Pool
from antiphon_server.traces.prefix import Change, Repeat, repeat, repeats
from antiphon_server.traces.text import FRAME, written
from antiphon_server.traces.trace import Call, Conversation, Message

SYSTEM = {"role": "system", "content": "s" * 1000}
USER = {"role": "user", "content": "u" * 500}
NEXT = {"role": "user", "content": "n" * 300}
TOOLS = ({"type": "function", "name": "ls"},)
FUNCTION = {"name": "ls", "arguments": '{"path": "/", "all": true}'}
CALL: dict[str, Any] = {"id": "1", "type": "function", "function": FUNCTION}
ASKED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [CALL],
}


def said(text: str = "a" * 400, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(*history: Message, prompt: int = 1000, answer: int = 100, **more: Any) -> Call:
    return Call(prompt, answer, history=history, **more)


def found(last: Call, after: Call, size: int | None = None) -> Repeat:
    told = repeat(last, after, size)
    assert told is not None
    return told


def test_extension_repeats_the_prompt_and_its_answer() -> None:
    told = found(call(SYSTEM, USER, reply=said()), call(SYSTEM, USER, said(), NEXT, prompt=1200))
    assert told == Repeat(Change.EXTENSION, held=1100, shared=1100, new=100, dropped=0, answer=100)
    assert told.most == 1100


def test_shared_is_never_more_than_the_prompt() -> None:
    told = found(call(SYSTEM, USER, reply=said()), call(SYSTEM, USER, said(), NEXT, prompt=900))
    assert (told.shared, told.new, told.answer) == (900, 0, 0)


@pytest.mark.parametrize(("answer", "shared"), [(900, 1900), (1140, 2000), (1141, 1000), (5000, 1000)])
def test_answer_far_longer_than_its_text_holds_thoughts_that_do_not_come_back(
    answer: int, shared: int
) -> None:
    # 1,000 tokens come, 427 bytes of the answer and 322 of what follows: its text has 570.1 of them.
    assert (len(written(said())), len(written(NEXT))) == (427, 322)
    told = found(
        call(SYSTEM, USER, reply=said(), answer=answer), call(SYSTEM, USER, said(), NEXT, prompt=2000)
    )
    assert told.shared == shared


@pytest.mark.parametrize(
    ("reply", "again"),
    [
        (said(refusal=None, annotations=[], audio=None), said()),
        (said(), {"role": "assistant", "content": [{"type": "text", "text": "a" * 400}]}),
        ({**ASKED, "content": ""}, ASKED),
        (ASKED, {**ASKED, "tool_calls": [{**CALL, "id": "2", "index": 0}]}),
        (
            ASKED,
            {**ASKED, "tool_calls": [{"function": {**FUNCTION, "arguments": '{"path":"/","all":true}'}}]},
        ),
        (said(reasoning_content="hm"), said(reasoning_content="hm")),
    ],
)
def test_answer_sent_again_in_other_json_is_the_same(reply: Message, again: Message) -> None:
    told = found(call(USER, reply=reply), call(USER, again, NEXT, prompt=2000))
    assert (told.change, told.answer, told.shared) == (Change.EXTENSION, 100, 1100)


def test_answer_sent_again_in_other_words_repeats_to_the_first_of_them() -> None:
    told = found(
        call(USER, reply=said("a" * 100 + "b" * 100)), call(USER, said("a" * 100 + "c"), NEXT, prompt=2000)
    )
    # "assistant" and a line end, then half of the text; a line end and the frame are whole.
    part = round(100 * (len("assistant") + 1 + 100) / (len("assistant") + 2 + 200 + FRAME))
    assert told == Repeat(
        Change.EXTENSION, held=1100, shared=1000 + part, new=1000 - part, dropped=0, answer=part
    )


@pytest.mark.parametrize(
    ("reply", "after"),
    [
        (said(reasoning_content="hm"), [said(), NEXT]),
        (said(reasoning="hm"), [said(), NEXT]),
        (said(reasoning_tokens=50), [said(), NEXT]),
        (said(), [NEXT]),
        (None, [said(), NEXT]),
        (said(), []),
    ],
)
def test_answer_that_is_not_sent_again_as_it_was_does_not_repeat(reply: Any, after: list[Message]) -> None:
    """A thought stands before the answer, so without it all that follows is elsewhere."""
    told = found(call(USER, reply=reply), call(USER, *after, prompt=1300))
    assert (told.change, told.answer, told.shared) == (Change.EXTENSION, 0, 1000)


def test_cut_drops_what_follows_the_first_difference() -> None:
    summary = {"role": "user", "content": "summary"}
    told = found(call(SYSTEM, USER, said(), NEXT), call(SYSTEM, summary, prompt=600))
    sizes = [len(written(message)) for message in (SYSTEM, USER, said(), NEXT)]
    kept = round(1000 * (sizes[0] + len("user\n")) / sum(sizes))
    assert told == Repeat(Change.CUT, held=1100, shared=kept, new=600 - kept, dropped=1000 - kept, answer=0)


def test_change_before_the_end_is_a_rewrite() -> None:
    dated = {"role": "system", "content": "today" + "s" * 995}
    told = found(call(SYSTEM, USER, reply=said()), call(dated, USER, said(), NEXT, prompt=1300))
    assert told.change is Change.REWRITE
    assert told.shared < 10
    assert told.dropped > 990


def test_history_that_went_back_is_a_cut() -> None:
    told = found(call(SYSTEM, USER, said(), NEXT), call(SYSTEM, USER, prompt=700))
    assert told.change is Change.CUT
    assert told.shared == round(
        1000 * sum(len(written(m)) for m in (SYSTEM, USER)) / _size([SYSTEM, USER, said(), NEXT])
    )


def test_tools_stand_before_the_messages() -> None:
    last = call(SYSTEM, USER, tools=TOOLS, reply=said())
    same = found(last, call(SYSTEM, USER, said(), NEXT, prompt=1300, tools=tuple(map(dict, TOOLS))))
    assert same.change is Change.EXTENSION
    for tools in (None, ({"type": "function", "name": "rm"},)):
        told = found(last, call(SYSTEM, USER, said(), NEXT, prompt=1300, tools=tools))
        assert told.change is Change.REWRITE
        assert told.shared < 30


def _size(messages: Sequence[Message]) -> int:
    return sum(len(written(message)) for message in messages)


def blocks(prompt: int, *ids: int, answer: int = 50) -> Call:
    return Call(prompt, answer, blocks=ids)


def test_blocks_tell_the_prompt_but_not_the_answer() -> None:
    told = found(blocks(200, 1, 2, 3), blocks(400, 1, 2, 3, 4, 5, 6), 64)
    assert told == Repeat(Change.EXTENSION, held=250, shared=192, new=208, dropped=0, answer=None)
    assert told.most == 250
    assert found(blocks(200, 1, 2, 3), blocks(210, 1, 2, 3), 64).most == 210


def test_last_block_may_differ() -> None:
    """That with the end of a template, and one that is not full."""
    assert found(blocks(192, 1, 2, 3), blocks(400, 1, 2, 4, 5, 6), 64).change is Change.EXTENSION
    told = found(blocks(200, 1, 2, 3, 4), blocks(400, 1, 2, 3, 5, 6), 64)
    assert (told.change, told.shared) == (Change.EXTENSION, 192)
    assert found(blocks(100, 1), blocks(400, 2, 3), 64).change is Change.REWRITE


def test_blocks_that_differ_earlier() -> None:
    told = found(blocks(640, *range(10)), blocks(320, 0, 1, 22, 23, 24), 64)
    assert told == Repeat(Change.CUT, held=690, shared=128, new=192, dropped=512, answer=None)
    assert told.most == 128
    assert found(blocks(640, *range(10)), blocks(704, 0, 1, *range(30, 39)), 64).change is Change.REWRITE


def test_no_block_tells_nothing() -> None:
    assert repeat(blocks(50), blocks(100, 1), 64) is None
    assert repeat(blocks(128, 1, 2), blocks(128, 1, 2), None) is None


@pytest.mark.parametrize(
    ("shared", "change", "answer"), [(1100, "extension", 100), (1050, "extension", 50), (900, "extension", 0)]
)
def test_figures(shared: int, change: str, answer: int) -> None:
    told = found(Call(1000, 100), Call(1300, 5, shared=shared))
    assert (told.change, told.shared, told.answer, told.dropped) == (change, shared, answer, 0)


def test_figures_that_fall_short_of_the_prompt() -> None:
    assert found(Call(1000, 100), Call(1300, 5, shared=800)).change is Change.REWRITE
    assert found(Call(1000, 100), Call(900, 5, shared=800)) == Repeat(Change.CUT, 1100, 800, 100, 200, 0)


def test_nothing_is_known_without_a_source() -> None:
    assert repeat(Call(1000, 100), Call(1300, 5)) is None
    assert repeats(Conversation("c", ())) == ()
    assert repeats(Conversation("c", (Call(1, 1), Call(2, 1)))) == (None, None)


def test_tokens_of_a_pool_count_each_message_once() -> None:
    pool = Pool(1.0)
    assert pool.one({"role": "user", "content": "u" * 500}) is pool.one(dict(USER))
    assert pool.tokens(pool.all([USER, USER])) == 2 * len(written(USER))
    assert pool.tools([]) is pool.tools("x") is None
    assert pool.tools([dict(TOOLS[0])]) is pool.tools([dict(TOOLS[0])])
