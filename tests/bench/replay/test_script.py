from __future__ import annotations

from pathlib import Path

import pytest

from antiphon_server.bench.replay.pace import Pace
from antiphon_server.bench.replay.recorded import Recorded
from antiphon_server.bench.replay.ruler import Ruler
from antiphon_server.bench.replay.script import Script, Size, Turn
from antiphon_server.bench.replay.scripts import Choice, scripts
from antiphon_server.bench.replay.synthetic import Synthetic
from antiphon_server.traces.read import read
from antiphon_server.traces.trace import Call, Conversation, Message, Trace

DATA = Path(__file__).parents[2] / "data"
BYTES = Ruler(characters=1.0, frame=9.0, head=11.0)
SYSTEM: Message = {"role": "system", "content": "You help."}
PACE = Pace()


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def spoken(*histories: tuple[Message, ...], size: Size = Size(), pace: Pace = PACE) -> Script:  # noqa: B008
    calls = tuple(Call(100, 40, gap=2.5, history=history) for history in histories)
    return Recorded(size, pace, BYTES).script(Conversation("c", calls))


def silent(*calls: Call, block_size: int | None = 64, size: Size = Size(), shared: bool = False) -> Script:  # noqa: B008
    trace = Trace("t", (Conversation("c", calls),), block_size=block_size, shared_blocks=shared)
    return Synthetic(trace, size, PACE, BYTES).script(trace.conversations[0])


def content(turn: Turn, place: int = -1) -> str:
    text = turn.new[place]["content"]
    assert isinstance(text, str)
    return text


def test_recorded_answers_are_left_out_and_what_follows_is_new() -> None:
    first = (SYSTEM, user("one"))
    script = spoken(first, (*first, said("recorded"), user("two"), user("three")))
    assert [turn.new for turn in script.turns] == [first, (user("two"), user("three"))]
    assert [(turn.keeps_messages, turn.keeps_tokens) for turn in script.turns] == [(None, None)] * 2
    assert [turn.gap for turn in script.turns] == [0.0, 2.5]


def test_an_answer_that_is_not_resent_is_not_kept() -> None:
    first = (SYSTEM, user("one"))
    script = spoken(first, (*first, user("two")))
    assert script.turns[1].keeps_messages == 2
    assert script.turns[1].new == (user("two"),)


def test_a_rewritten_history_keeps_the_messages_before_the_change() -> None:
    first = (SYSTEM, user("one"), said("a"), user("two"))
    script = spoken(first, (SYSTEM, user("one"), user("summary"), said("b"), user("three")))
    assert script.turns[1].keeps_messages == 2
    assert script.turns[1].new == (user("summary"), said("b"), user("three"))


def test_text_and_answers_are_scaled() -> None:
    script = spoken((user("x" * 400),), size=Size(scale=4.0, longest_answer=8))
    assert content(script.turns[0]) == "x" * 100
    assert script.turns[0].answer == 8
    assert spoken((user("x"),), size=Size(scale=4.0)).turns[0].answer == 10


def test_a_conversation_ends_before_its_first_turn_that_is_too_long() -> None:
    first = (user("x" * 100),)
    script = spoken(first, (*first, said("a"), user("y" * 900)), size=Size(longest_prompt=500))
    assert len(script.turns) == 1
    assert script.cut == 1


def test_parts_that_are_not_text_are_left_out() -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    assert content(spoken(({"role": "user", "content": parts},)).turns[0]) == "see"


def test_the_same_block_gets_the_same_words() -> None:
    one = silent(Call(128, 10, blocks=(1, 2)), Call(256, 10, blocks=(7, 2, 9, 1)))
    first, second = (content(turn) for turn in one.turns)
    assert first[64:128] == second[64:128]
    assert first[:64] == second[192:256] != second[:64]


@pytest.mark.parametrize("shared", [True, False])
def test_blocks_are_shared_between_conversations_only_where_their_ids_are(shared: bool) -> None:
    calls = (Call(128, 10, blocks=(1, 2)),)
    both = (Conversation("a", calls), Conversation("b", calls), Conversation("a/1", calls, parent="a"))
    trace = Trace("t", both, block_size=64, shared_blocks=shared)
    made = scripts(trace, size=Size(), pace=PACE, ruler=BYTES, choice=Choice())
    a, b, child = (content(script.turns[0])[:128] for script in made)
    assert (a == b) is shared
    assert a == child


def test_a_prompt_that_extends_the_last_one_keeps_all_of_it() -> None:
    # The last block was not full, and has another id when it is.
    script = silent(Call(100, 10, blocks=(1, 2)), Call(200, 10, blocks=(1, 5, 6, 7)))
    assert script.turns[1].keeps_tokens is None
    assert script.turns[1].length == 200


def test_a_prompt_that_was_cut_keeps_its_beginning() -> None:
    script = silent(
        Call(640, 10, blocks=tuple(range(10))), Call(192, 10, blocks=(0, 1, 77)), size=Size(scale=2.0)
    )
    assert script.turns[1].keeps_tokens == 64
    assert script.turns[1].length == 96


def test_figures_tell_what_is_kept_where_there_are_no_blocks() -> None:
    script = silent(
        Call(1000, 50), Call(1200, 50, shared=1050), Call(900, 50, shared=300), Call(950, 50), block_size=None
    )
    assert [turn.keeps_tokens for turn in script.turns] == [None, None, 300, None]
    assert content(script.turns[0])[:300] != content(script.turns[1])[:300]


def agents(common: bool, copies: int = 1) -> list[tuple[str, str]]:
    """System prompt and rest of the first turn of two conversations of 128 fixed tokens."""
    calls = (Call(500, 10, blocks=tuple(range(7))),)
    trace = Trace("t", tuple(Conversation(name, calls, fixed=130) for name in "ab"), block_size=64)
    size, choice = Size(common=common), Choice(copies=copies)
    made = scripts(trace, size=size, pace=PACE, ruler=BYTES, choice=choice)
    assert all([m["role"] for m in script.turns[0].new] == ["system", "user"] for script in made)
    return [(content(script.turns[0], 0), content(script.turns[0])) for script in made]


def test_what_is_fixed_is_the_system_prompt() -> None:
    (system, rest), (other, _) = agents(common=False)
    assert len(system) == 128
    assert len(rest) >= 500 - 128
    # Where nearly all is fixed, the template's own tokens need room, too.
    short = Conversation("c", (Call(140, 10, blocks=(1, 2)),), fixed=130)
    trace = Trace("t", (short,), block_size=64)
    turn = Synthetic(trace, Size(), PACE, BYTES).script(short).turns[0]
    assert len(content(turn, 0)) == 64
    assert system != other


def test_all_conversations_may_have_one_system_prompt() -> None:
    (system, rest), (other, other_rest) = agents(common=True)
    assert system == other
    assert rest[:64] != other_rest[:64]


def test_copies_share_the_system_prompt_alone() -> None:
    (system, rest), (copy, copied_rest), *_ = agents(common=False, copies=2)
    assert system == copy
    assert rest[:64] != copied_rest[:64]
    said_twice = Trace("t", (Conversation("c", (Call(9, 9, history=(SYSTEM, user("one"))),)),))
    made = scripts(said_twice, size=Size(), pace=PACE, ruler=BYTES, choice=Choice(copies=2))
    assert [script.turns[0].new for script in made] == [(SYSTEM, user("one")), (SYSTEM, user("[1] one"))]
    assert [script.name for script in made] == ["c", "c.1"]


def chosen(choice: Choice, turns: int = 3) -> tuple[Script, ...]:
    calls = tuple(Call(100 * n, 5, blocks=tuple(range(n))) for n in range(1, turns + 1))
    names = [Conversation(f"c{n}", calls[: n + 1]) for n in range(8)]
    return scripts(
        Trace("t", tuple(names), block_size=64), size=Size(), pace=PACE, ruler=BYTES, choice=choice
    )


def test_limits_choose_conversations_and_turns() -> None:
    assert [script.name for script in chosen(Choice(conversations=2))] == ["c0", "c1"]
    assert {len(script.turns) for script in chosen(Choice(turns=2))} == {1, 2}
    assert [script.name for script in chosen(Choice(least=3, conversations=2))] == ["c2", "c3"]


def test_a_seed_draws_the_same_conversations_again() -> None:
    drawn = [[script.name for script in chosen(Choice(conversations=4, seed=seed))] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != ["c0", "c1", "c2", "c3"]


def test_nothing_to_replay_is_a_fault() -> None:
    with pytest.raises(ValueError, match="none of 8 conversations has 9 turn"):
        chosen(Choice(least=9))


def test_two_conversations_of_one_name_are_told_apart() -> None:
    calls = (Call(100, 5, blocks=(1,)),)
    trace = Trace("t", (Conversation("c", calls), Conversation("c", calls)), block_size=64)
    made = scripts(trace, size=Size(), pace=PACE, ruler=BYTES, choice=Choice())
    assert [script.name for script in made] == ["c", "c#2"]


@pytest.mark.parametrize(("folder", "turns"), [("coding_agents", 231), ("tau_bench", 10), ("swe_agent", 3)])
def test_recorded_data_become_scripts(folder: str, turns: int) -> None:
    made = scripts(read([DATA / folder]), size=Size(), pace=PACE, ruler=BYTES, choice=Choice())
    assert sum(len(script.turns) for script in made) >= turns
    assert not any(script.cut for script in made)
