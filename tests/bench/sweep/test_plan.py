from __future__ import annotations

import dataclasses

import msgspec
import pytest

from antiphon_server.bench.arms import Arm
from antiphon_server.bench.sweep.measure import _runs
from antiphon_server.bench.sweep.plan import Plan, lengths_of
from antiphon_server.bench.sweep.presets import PRESETS, preset_of
from antiphon_server.counters import Counters, Page
from antiphon_server.protocol import Info, LeaseLimits

ARMS = tuple(Arm(name, "http://router", True) for name in ("off", "reuse", "append", "auto"))
PUBLISHED = Info(
    *(1, "id", "epoch", "decode", "Qwen/Qwen3-32B", "0.29", "1.4.1", 128, ["full"], 8, 1, 64, 1),
    leases=LeaseLimits(60, 30, 600),
    reuse=True,
)


def test_lengths_are_sorted_and_told_once() -> None:
    assert lengths_of("8000, 1000,8000") == (1000, 8000)


def test_announcements_method() -> None:
    qwen, glm = (preset_of(f"announcement-{name}").plan for name in ("qwen3-32b", "glm-5"))
    assert qwen.lengths == (2000, 4000, 8000, 12000, 16000, 20000, 24000)
    assert glm.lengths == (2000, 4000, 8000, 12000, 16000, 20000)
    for plan in (qwen, glm):
        assert (plan.conversations, plan.turns, plan.new, plan.answer) == (10, 10, 150, 300)
        assert (plan.clients, plan.active, plan.settle) == (2, 10, 20.0)
        plan.check(32768)


def test_every_preset_is_a_plan_that_can_be_carried_out() -> None:
    for preset in PRESETS.values():
        preset.plan.check(32768)


def test_prefix_that_grows_beyond_the_context_is_refused_with_the_longest_that_fits() -> None:
    plan = Plan((30000,))
    with pytest.raises(ValueError, match="the model takes 32768: shorten them to ") as caught:
        plan.check(32768)
    fits = int(str(caught.value).split("shorten them to ")[1].split(",")[0])
    dataclasses.replace(plan, lengths=(fits,)).check(32768)


def test_arms_take_turns_in_being_first() -> None:
    plan = Plan((1, 2, 3), conversations=1, active=1, clients=1, repeat=4)
    runs = list(_runs(plan, ARMS))
    assert len(runs) == 12
    firsts = [order[0].name for *_, order in runs]
    assert {name: firsts.count(name) for name in set(firsts)} == dict.fromkeys(
        ("off", "reuse", "append", "auto"), 3
    )
    for length in plan.lengths:  # and not always the same one at one length
        assert len({order[0].name for _, own, _, order in runs if own == length}) == 4
    assert all({arm.name for arm in order} == {arm.name for arm in ARMS} for *_, order in runs)


def test_conversations_are_open_in_groups() -> None:
    plan = Plan((1,), conversations=5, active=2)
    assert [list(group) for group in plan.groups()] == [[0, 1], [2, 3], [4]]


def test_published_fleet_has_no_differences() -> None:
    published = preset_of("announcement-qwen3-32b").published
    assert published is not None
    assert published.differences(PUBLISHED, Page(Counters(), caching=False)) == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"model": "tiny"}, "model tiny: the announcement has Qwen3-32B"),
        ({"tensor_parallel": 4}, "tensor parallel size 4: start the engines with --tensor-parallel-size 8"),
        ({"threshold": 0}, "kv_recompute_threshold 0"),
        ({"reuse": False, "reuse_reason": "flag"}, "decode cannot reuse (flag)"),
    ],
)
def test_difference_from_the_published_fleet_is_told(changed: dict[str, object], told: str) -> None:
    published = preset_of("announcement-qwen3-32b").published
    assert published is not None
    info = msgspec.structs.replace(PUBLISHED, **changed)
    (found,) = published.differences(info, Page(Counters(), caching=False))
    assert told in found
