from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from antiphon.testing import FakeRouter, Recorded
from rig.recipe import Run, output_of

ANGLES = ["history", "prices", "risks"]


def writer(request: Recorded) -> dict[str, Any]:
    said = len(request.body["messages"]) // 2
    return {"role": "assistant", "content": f"text {said}", "reasoning_content": "é"}


@pytest.fixture(scope="module")
def router() -> Iterator[FakeRouter]:
    """A router, after the example ran."""
    with FakeRouter() as router:
        router.answer = writer
        output = output_of("openai_fan_out", router.base_url.removesuffix("/v1"), "--model", "m")
        assert [line.partition(": ")[0] for line in output.splitlines()[:5]] == ["outline", *ANGLES, "report"]
        yield router


@pytest.fixture(scope="module")
def loops(router: FakeRouter) -> dict[str, list[Recorded]]:
    """The calls of each conversation, in order."""
    found: defaultdict[str, list[Recorded]] = defaultdict(list)
    for call in router.calls():
        found[call.body["conversation_id"]].append(call)
    return dict(found)


def test_researchers_are_children_of_the_editor(loops: dict[str, list[Recorded]]) -> None:
    editor = min(loops, key=len)
    assert sorted(loops) == [editor, *(f"{editor}/{angle}" for angle in ANGLES)]
    for name, calls in loops.items():
        assert {call.headers["x-session-id"] for call in calls} == {name}
        parents = {call.headers.get("x-parent-session-id") for call in calls}
        assert parents == {None if name == editor else editor}
        assert len({call.headers["x-turn-id"] for call in calls}) == len(calls)


def test_each_conversation_grows_from_what_it_said(loops: dict[str, list[Recorded]]) -> None:
    for calls in loops.values():
        for before, after in pairwise(calls):
            told = len(before.body["messages"])
            assert after.body["messages"][:told] == before.body["messages"]
            assert after.body["messages"][told] == writer(before)
            assert len(after.body["messages"]) == told + 2


def test_each_conversation_is_ended_once(router: FakeRouter, loops: dict[str, list[Recorded]]) -> None:
    assert sorted(router.ends()) == sorted(loops)


def test_editor_reads_what_all_researchers_found(
    loops: dict[str, list[Recorded]],
) -> None:
    _, report = loops[min(loops, key=len)]
    notes = report.body["messages"][-1]["content"].splitlines()[1:]
    assert notes == [f"{angle}: text 3" for angle in ANGLES]


def test_openai_fan_out(run: Callable[..., Run]) -> None:
    ran = run("openai_fan_out")
    ran.assert_conversations(1 + len(ANGLES))
    ran.assert_exact()
    lines = ran.output.splitlines()[-1 - len(ANGLES) :]
    reused = [re.fullmatch(r"(\w+): reused (\d+) of (\d+) prompt tokens", line) for line in lines]
    assert [found and found[1] for found in reused] == ["editor", *ANGLES]
    assert all(found and 0 < int(found[2]) < int(found[3]) for found in reused)
    assert ran.reused == 1 + 2 * len(ANGLES)
    assert ran.kept == 0
