"""``antiphon demo`` with simulated engines in place of the stack that it starts."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from antiphon_server.bench import site as sites
from antiphon_server.bench.engines import Engines
from antiphon_server.cli import app

Run = Callable[..., Result]


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the command over a simulated stack."""

    def run(stack: Any, *options: str) -> Result:
        @contextlib.contextmanager
        def started(settings: object, console: object) -> Iterator[sites.Site]:
            with contextlib.closing(Engines([stack.prefill_url], [stack.decode_url])) as engines:
                yield sites.Site(stack.router, "simulated", engines)

        monkeypatch.setattr(sites, "started", started)
        return CliRunner().invoke(app, ["demo", "--chart", str(tmp_path / "demo.png"), *options])

    return run


def figures(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "demo.json").read_text())
    return found


def test_both_runs_send_the_same_and_answer_the_same(demo: Run, simulated_stack: Any, tmp_path: Path) -> None:
    stack = simulated_stack()
    result = demo(stack)
    assert result.exit_code == 0, result.output
    assert "answers identical: yes" in result.output
    rows = figures(tmp_path)["rows"]
    assert [row["name"] for row in rows][-1] == "report"
    for row in rows:
        assert row["without"]["timed"]["prompt"] == row["reusing"]["timed"]["prompt"]
        assert row["without"]["timed"]["outcome"]["path"] == "cold"
        assert row["without"]["received"] == 0
    for before, row in itertools.pairwise(rows):
        assert row["reusing"]["timed"]["outcome"]["path"] == "reuse"
        assert row["reusing"]["timed"]["outcome"]["matched"] >= before["reusing"]["timed"]["prompt_tokens"]
        assert row["reusing"]["received"] > 0
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_is_pinned_when_it_ends(demo: Run, simulated_stack: Any, tmp_path: Path) -> None:
    stack = simulated_stack()
    assert "pinned on the engines after close: 0" in demo(stack).output
    assert (stack.prefill.pinned_blocks, stack.decode.pinned_blocks) == (0, 0)


def test_runs_share_no_cache(demo: Run, simulated_stack: Any) -> None:
    stack = simulated_stack()
    demo(stack)
    salts = [
        request.body.get("cache_salt") for request in stack.prefill.requests if "messages" in request.body
    ]
    assert None not in salts
    assert len(set(salts)) == 3  # warm-up, without reuse, with reuse


def test_foreign_kv_fails_the_demo(demo: Run, simulated_stack: Any) -> None:
    # An engine that believes every handle, and text that does not tokenise back to what was sampled.
    stack = simulated_stack(prefill={"check": False, "drift": True}, decode={"drift": True})
    result = demo(stack)
    assert result.exit_code == 1, result.output
    assert "answers identical: NO" in result.output


def test_demo_that_reused_nothing_fails(demo: Run, simulated_stack: Any) -> None:
    result = demo(simulated_stack(router={"paths": ["cold"]}))
    assert result.exit_code == 1
    assert "answers identical: yes" in result.output
    assert "nothing was reused: off" in result.output


def test_turns_are_as_many_as_asked_for(demo: Run, simulated_stack: Any, tmp_path: Path) -> None:
    assert demo(simulated_stack(), "--turns", "7").exit_code == 0
    assert len(figures(tmp_path)["rows"]) == 7


def test_stack_that_does_not_start_is_a_fault(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["demo", "--model", "no/such/model", "--chart", str(tmp_path / "demo.png")]
    )
    assert result.exit_code == 2
    assert "no model 'no/such/model'" in result.output


def test_failed_turn_is_a_fault(demo: Run, simulated_stack: Any) -> None:
    result = demo(simulated_stack(decode={"max_model_len": 4000}, prefill={"max_model_len": 4000}))
    assert result.exit_code == 2
    assert "a turn failed" in result.output
