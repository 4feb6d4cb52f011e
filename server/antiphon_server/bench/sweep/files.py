"""A sweep on disk."""

from __future__ import annotations

import csv
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from antiphon_server.bench.keep import write_json
from antiphon_server.bench.sweep.record import Cell, Sweep, Turn, cells
from antiphon_server.bench.sweep.table import markdown
from antiphon_server.bench.sweep.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Report:
    """Everything, as it stands in the JSON."""

    sweep: Sweep
    cells: tuple[Cell, ...]
    verdict: Verdict


class SweepError(ValueError):
    """A file is no sweep, or holds too little for what is asked of it."""


class _Saved(msgspec.Struct):
    """What is read back of a :class:`Report`: the rest follows from it."""

    sweep: Sweep


def read(json: Path) -> Sweep:
    """What :func:`write` wrote.

    Raises:
        SweepError: it cannot be read, or is something else.
    """
    try:
        return msgspec.json.decode(json.read_bytes(), type=_Saved).sweep
    except OSError as error:
        raise SweepError(f"{json} cannot be read: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise SweepError(
            f"{json} is no sweep ({error}): give the JSON that antiphon bench sweep of this version wrote"
        ) from error


def write(sweep: Sweep, verdict: Verdict, folder: Path, json: Path | None = None) -> list[Path]:
    """JSON (everything), CSV (a line a turn), Markdown (tables). What was written."""
    found = [json or folder / "sweep.json", folder / "sweep.csv", folder / "sweep.md"]
    write_json(Report(sweep, tuple(cells(sweep)), verdict), found[0])
    folder.mkdir(parents=True, exist_ok=True)
    with found[1].open("w", newline="") as file:
        lines = [_line(turn) for turn in sweep.turns]
        writer = csv.DictWriter(file, list(lines[0]) if lines else [])
        writer.writeheader()
        writer.writerows(lines)
    found[2].write_text(markdown(sweep, verdict))
    return found


def _line(turn: Turn) -> dict[str, Any]:
    place, timed, outcome = turn.place, turn.timed, turn.timed.outcome
    return {
        "arm": turn.arm,
        "phase": place.phase.value,
        "cache": place.cache.value,
        "length": place.length,
        "repeat": place.repeat,
        "conversation": place.conversation,
        "turn": place.turn,
        "prompt_tokens": timed.prompt_tokens,
        "answer_tokens": len(timed.answer.ids),
        "ttft": round(timed.ttft, 6),
        "total": round(timed.total, 6),
        "inter_token_median": round(statistics.median(timed.waits), 6) if timed.waits else None,
        "path": outcome.path,
        "reason": outcome.reason,
        "matched": outcome.matched,
        "held": outcome.held,
        "prompt": timed.prompt,
        **{f"prefill_{name}": value for name, value in asdict(turn.prefill).items()},
        **{f"decode_{name}": value for name, value in asdict(turn.decode).items()},
    }
