"""What a router remembers of very many conversations, measured in a process of its own."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from antiphon_server.bench.overhead.memory import grown

PER_CONVERSATION = 400e6 / 200_000
SAMPLE = 25_000
"""An eighth: the tables of 200,000 are as full as those of a power of two less."""


def test_two_hundred_thousand_conversations_take_less_than_400_mb() -> None:
    assert grown(SAMPLE, SAMPLE)[SAMPLE] < SAMPLE * PER_CONVERSATION


def test_memory_is_bounded_beyond_what_is_kept() -> None:
    sizes = grown(15_000, 5_000)
    assert sizes[15_000] < 1.5 * sizes[5_000]


_FAULTS = """
import resource
from antiphon_server.router.server import settle

settle()

def turn():
    return [bytes(bytearray(700_000)) for _ in range(4)]

turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    turn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_memory_of_bodies_is_not_given_back_and_taken_anew() -> None:
    ran = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, check=True, text=True)
    assert int(ran.stdout) < 1000  # pages; the 50 turns' bodies have 68,000
