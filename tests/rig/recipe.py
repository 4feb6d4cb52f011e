"""Runs recipes of ``examples/`` as their readers do, with nothing but this machine in reach."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from antiphon_server.simulator import Settings, expected_text

ROOT = Path(__file__).parents[2]
_TURNS = re.compile(r'^antiphon_turns_total\{path="(\w+)",reason="(\w+)"\} (\d+)', re.MULTILINE)


def output_of(recipe: str, router: str, *arguments: str, environ: dict[str, str] | None = None) -> str:
    """What ``examples/<recipe>.py`` prints. ``router``: its URL; ``environ``: variables to set.

    Raises:
        AssertionError: it failed, or tried to reach another machine.
    """
    return output_of_program(
        f"examples/{recipe}.py", "--base-url", f"{router}/v1", *arguments, environ=environ
    )


def output_of_program(*arguments: str, environ: dict[str, str] | None = None) -> str:
    """What ``python <arguments>`` prints, run in the repository's root.

    Raises:
        AssertionError: it failed, or tried to reach another machine.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    paths = [Path(__file__).parent / "loopback_only", ROOT / "sdk", ROOT / "integrations"]
    path = os.pathsep.join([*map(str, paths), *filter(None, [inherited.get("PYTHONPATH")])])
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": path, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def turns_of(router: str) -> Counter[tuple[str, str]]:
    """How many turns it served, by path and reason."""
    metrics = httpx.get(f"{router}/metrics", trust_env=False).text
    return Counter({(path, reason): int(count) for path, reason, count in _TURNS.findall(metrics)})


@dataclass(frozen=True)
class Run:
    """A recipe that ran on simulated engines.

    ``turns``: how many the router served, by path and reason. ``kept``: conversations whose KV it still has.
    ``asked``: bodies of the requests that decode answered, in their order.
    """

    output: str
    turns: Counter[tuple[str, str]]
    kept: int
    asked: list[dict[str, Any]]
    settings: Settings

    @property
    def reused(self) -> int:
        """Turns that were not cold."""
        return sum(count for (path, _), count in self.turns.items() if path != "cold")

    def assert_conversations(self, count: int) -> None:
        """So many: the router meets each of them once, cold. All other turns found what the last one left."""
        cold = {key: turns for key, turns in self.turns.items() if key[0] == "cold"}
        assert cold == {("cold", "first"): count}

    def assert_exact(self, surface: str = "chat") -> None:
        """All that full recomputation answers is printed, or stands in a later request."""
        for turn, body in enumerate(self.asked):
            answer = expected_text(self.settings, body, surface)
            later = [text for each in self.asked[turn + 1 :] for text in _texts(each["messages"])]
            assert _canonical(answer) in later or any(answer in text for text in (self.output, *later)), (
                answer
            )


def _texts(messages: Any) -> Iterator[str]:
    """Every text and every object in a history."""
    if isinstance(messages, str | dict):
        yield _canonical(messages)
    if isinstance(messages, dict | list):
        for each in messages.values() if isinstance(messages, dict) else messages:
            yield from _texts(each)


def _canonical(said: str | dict[str, Any]) -> str:
    """Frameworks may write the arguments of a call in their own way."""
    try:
        return json.dumps(json.loads(said) if isinstance(said, str) else said)
    except ValueError:
        return str(said)
