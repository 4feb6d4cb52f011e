"""What a router remembers of very many conversations, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
PER_CONVERSATION = 400e6 / 200_000
SAMPLE = 25_000
"""An eighth: the tables of 200,000 are as full as those of a power of two less."""


def measured(conversations: int, bound: int) -> dict[str, int]:
    """Bytes grown by conversations served."""
    command = [sys.executable, "-m", "rig.memory", str(conversations), str(bound)]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown: dict[str, int] = json.loads(done.stdout)["grown"]
    return grown


def test_two_hundred_thousand_conversations_take_less_than_400_mb() -> None:
    assert measured(SAMPLE, SAMPLE)[str(SAMPLE)] < SAMPLE * PER_CONVERSATION


def test_memory_is_bounded_beyond_what_is_kept() -> None:
    grown = measured(15_000, 5_000)
    assert grown["15000"] < 1.5 * grown["5000"]
