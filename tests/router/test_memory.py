"""What a router remembers of very many conversations, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
PER_CONVERSATION = 400e6 / 200_000


def measured(conversations: int, bound: int) -> dict[str, int]:
    """Bytes grown by conversations served."""
    command = [sys.executable, "-m", "rig.memory", str(conversations), str(bound)]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown: dict[str, int] = json.loads(done.stdout)["grown"]
    return grown


def test_two_hundred_thousand_conversations_take_less_than_400_mb() -> None:
    assert measured(20_000, 20_000)["20000"] < 20_000 * PER_CONVERSATION


def test_memory_is_bounded_beyond_what_is_kept() -> None:
    grown = measured(12_000, 4_000)
    assert grown["12000"] < 1.5 * grown["4000"]
