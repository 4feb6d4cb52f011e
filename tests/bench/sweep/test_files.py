"""Sweeps on disk."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest

from antiphon_server.bench.sweep.files import SweepError, read
from antiphon_server.bench.timing import Answer
from doubles.sweeps import LATER, saved, sweep, turn


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    told = [turn("reuse", LATER, answer=Answer((1,), "a", "tool", "{}", (-0.5,), "stop"), cached=7)]
    every = [*sweep().turns, *told]
    assert read(saved(every, tmp_path)) == sweep(every)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is no sweep .*: give the JSON that antiphon bench sweep of this version wrote"),
        ('{"rows": []}', "is no sweep .*missing required field `sweep`"),
        ('{"sweep": {"turns": []}}', "is no sweep"),
    ],
)
def test_what_is_no_sweep_is_named(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SweepError, match=words):
        read(path)


def test_a_turns_median_lies_in_the_middle_of_its_waits(tmp_path: Path) -> None:
    # Waits 0.5, 0.125, 0.25, 1.
    one = turn("off", LATER, times=(1.0, 1.5, 1.625, 1.875, 2.875))
    alone = dataclasses.replace(one, arm="auto", timed=dataclasses.replace(one.timed, times=(1.0,)))
    saved([one, alone], tmp_path)
    with (tmp_path / "sweep.csv").open() as file:
        assert [line["inter_token_median"] for line in csv.DictReader(file)] == ["0.375", ""]
