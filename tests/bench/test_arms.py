"""Routers that are compared: those of a stack of our own, and those that are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import antiphon
from antiphon_server.bench import arms, engines
from antiphon_server.bench.site import SiteError
from antiphon_server.stack.settings import StackSettings


@pytest.fixture(autouse=True)
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "REST_S", 0.0)


def test_each_arm_of_our_own_stack_has_a_router_with_its_paths(
    fake_vllm: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fake_vllm.items():
        monkeypatch.setenv(name, value)
    settings = StackSettings(model="tiny", log_dir=tmp_path)
    with arms.started(settings, Console(quiet=True), ("off", "auto")) as (site, found):
        assert [(arm.name, arm.stamps) for arm in found] == [("off", False), ("auto", True)]
        assert len({arm.router for arm in found}) == 2
        assert site.router == found[0].router
        said: dict[str, str] = {}
        for arm in found:
            with arm.client() as client, antiphon.conversation():
                raw = client.chat.completions.with_raw_response.create(
                    model=site.model, messages=[{"role": "user", "content": "Hello"}], max_tokens=4
                )
            said[arm.name] = raw.headers["x-antiphon-reuse"]
    assert "reason=off" in said["off"]
    assert "reason=first" in said["auto"]
    assert {path.name for path in tmp_path.glob("router*")} == {"router-off.log", "router-auto.log"}


def test_unknown_arm_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="'fast' is no arm: take some of off, reuse, append, auto"),
        arms.started(StackSettings(log_dir=tmp_path), Console(quiet=True), ("off", "fast")),
    ):
        pass


def test_single_router_is_asked_without_and_with_ids(simulated_stack: Any) -> None:
    stack = simulated_stack()
    with arms.given([f"{stack.router}/v1/"]) as (site, found):
        assert site.model == "simulated"
        assert [(a.name, a.router, a.stamps) for a in found] == [
            ("off", stack.router, False),
            ("configured", stack.router, True),
        ]


def test_named_routers_are_arms_in_their_order(simulated_stack: Any) -> None:
    stack = simulated_stack(routers={"off": {"paths": ["cold"]}, "mine": {}, "reuse": {}})
    named = [f"{name}={url}" for name, url in reversed(stack.routers.items())]
    with arms.given(named) as (_, found):
        assert [(a.name, a.router) for a in found] == [
            ("off", stack.routers["off"]),
            ("reuse", stack.routers["reuse"]),
            ("mine", stack.routers["mine"]),
        ]


def test_first_router_serves_off_where_none_is_named_so(simulated_stack: Any) -> None:
    stack = simulated_stack(routers={"reuse": {}, "auto": {}})
    with arms.given([f"{name}={url}" for name, url in stack.routers.items()]) as (_, found):
        assert [a.name for a in found] == ["off", "reuse", "auto"]
        assert found[0].router == found[1].router


@pytest.mark.parametrize(
    ("routers", "fault"),
    [
        (["reuse=http://a", "http://b"], "has no name: write it like auto=http://b"),
        (["reuse=http://a", "reuse=http://b"], "reuse=... stands twice"),
        ([], "no --router is named"),
    ],
)
def test_routers_that_are_named_badly_are_refused(routers: list[str], fault: str) -> None:
    with pytest.raises(ValueError, match=fault.replace(".", r"\.")), arms.given(routers):
        pass


def test_only_off_is_no_comparison(simulated_stack: Any) -> None:
    with pytest.raises(ValueError, match="name another arm"), arms.given([f"off={simulated_stack().router}"]):
        pass


def test_routers_over_other_engines_are_refused(simulated_stack: Any) -> None:
    one, two = simulated_stack(), simulated_stack()
    with (
        pytest.raises(SiteError, match="name routers over the same engines"),
        arms.given([f"reuse={one.router}", f"auto={two.router}"]),
    ):
        pass
