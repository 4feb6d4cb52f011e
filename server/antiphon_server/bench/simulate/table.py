"""A comparison in print: on screen, as Markdown and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from antiphon_server.bench.grid import Grid
from antiphon_server.bench.simulate.rates import RateModel
from antiphon_server.bench.simulate.report import Report
from antiphon_server.bench.simulate.run import Result
from antiphon_server.bench.simulate.served import GROUPS
from antiphon_server.quantiles import Spread

TTFT = ("policy", "turns", "TTFT mean", "p50", "p95", "p99", "turn 1", "2-5", "6+", "ITL mean", "p99")
LOAD = (
    "policy",
    "append/reuse/cold",
    "P busy",
    "D busy",
    "D on prompts",
    "pinned mean",
    "most",
    "budget",
    "given up",
    "waits",
    "moved",
    "turns/s",
)


def ttft_row(result: Result) -> tuple[str, ...]:
    """In the order of :data:`TTFT`; of the groups it is the mean."""
    whole, pace = result.ttft["all"], result.pace
    return (
        result.policy,
        f"{result.turns}",
        *(_seconds(whole, name) for name in ("mean", "p50", "p95", "p99")),
        *(_seconds(result.ttft[group], "mean") for group in GROUPS[1:]),
        *(_milliseconds(pace, name) for name in ("mean", "p99")),
    )


def load_row(result: Result) -> tuple[str, ...]:
    """In the order of :data:`LOAD`."""
    shares = "/".join(f"{100 * result.share(path):.0f}" for path in ("append", "reuse", "cold"))
    return (
        result.policy,
        f"{shares} %",
        f"{result.prefill_busy:.0%}",
        f"{result.decode_busy:.0%}",
        f"{result.decode_prompts:.1%}",
        f"{result.pinned_mean:.0%}",
        f"{result.pinned_most:.0%}",
        f"{result.budget:.0%}" if result.budget else "none",
        f"{sum(result.evictions.values())}",
        f"{result.waits}",
        _bytes(result.moved),
        f"{result.rate:.1f}",
    )


def tables(report: Report) -> RenderableType:
    """Waiting times, then load."""
    parts: list[RenderableType] = [Text(LINE, style="bold yellow") for LINE in report.conditions()[:1]]
    for columns, row in ((TTFT, ttft_row), (LOAD, load_row)):
        grid = Grid(columns)
        for result in report.results:
            grid.add(*row(result))
        parts += [grid, Text()]
    parts += [Text(line) for line in report.conditions()[1:]]
    parts += [Text(f"note: {note}") for note in report.notes]
    return Group(*parts)


def markdown(report: Report) -> str:
    """Both tables, the rates and their errors."""
    lines = ["# Simulated fleet", "", f"**{report.label}**", ""]
    lines += [f"- {line}" for line in report.conditions()[1:]]
    lines += [f"- note: {note}" for note in report.notes] + [""]
    for columns, row in ((TTFT, ttft_row), (LOAD, load_row)):
        lines += _grid(columns, [row(result) for result in report.results])
    lines += ["## Rates", "", *rates_markdown(report.model)]
    return "\n".join(lines) + "\n"


def rates_markdown(model: RateModel) -> list[str]:
    """Parameters, what was assumed, and the error at each figure that they were fitted to."""
    lines = _grid(("parameter", "value"), list(parameters(model)))
    if model.assumed:
        lines += ["Assumed, as no figure tells: " + "; ".join(model.assumed) + ".", ""]
    if model.errors:
        lines += _grid(("figure", "given", "by the fit", "error"), list(errors(model)))
    return lines


def parameters(model: RateModel) -> Iterator[tuple[str, str]]:
    """Name and value."""
    for name in ("prefill", "step", "stream", "transfer", "pull", "hand_over"):
        yield name, f"{getattr(model, name) * 1e3:.3g} ms"
    for name in ("token", "transfer_token", "pull_token", "tokenize"):
        yield f"{name}, of 1000", f"{getattr(model, name) * 1e6:.3g} ms"
    yield "attention, of 1000 after 1000", f"{model.attention * 1e6:.3g} ms"
    yield "chunk", f"{model.chunk} tokens"
    yield "KV", f"{model.bytes_per_token} bytes a token"


def errors(model: RateModel) -> Iterator[tuple[str, str, str, str]]:
    """Figure, as it was given, as the fit has it, relative error."""
    for name, given, found in model.errors:
        yield name, f"{given * 1e3:.0f} ms", f"{found * 1e3:.0f} ms", f"{100 * (found / given - 1):+.1f} %"


FIGURES = (
    "share_append",
    "share_reuse",
    "share_cold",
    "prefill_busy_share",
    "decode_busy_share",
    "decode_on_prompts_share",
    "pinned_mean_share",
    "pinned_most_share",
    "budget_share",
    "given_up",
    "waits",
    "moved_bytes",
    "turns_per_s",
)
"""Columns of the CSV: those of :data:`LOAD`, unrounded."""


def figures(result: Result) -> tuple[float, ...]:
    """In the order of :data:`FIGURES`."""
    return (
        *(result.share(path) for path in ("append", "reuse", "cold")),
        result.prefill_busy,
        result.decode_busy,
        result.decode_prompts,
        result.pinned_mean,
        result.pinned_most,
        result.budget,
        sum(result.evictions.values()),
        result.waits,
        result.moved,
        result.rate,
    )


def write_csv(report: Report, path: Path) -> None:
    """A line for each policy and group of turns: plain numbers, their units in the header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ttft = ("mean", "p50", "p95", "p99", "most")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        head = ("simulation", "policy", "turns", "count", *(f"ttft_{name}_s" for name in ttft))
        writer.writerow((*head, *FIGURES))
        for result in report.results:
            for group in GROUPS:
                found = result.ttft[group]
                if found is not None:
                    spread = (found.count, *(getattr(found, name) for name in ttft))
                    writer.writerow(("yes", result.policy, group, *spread, *figures(result)))


def _grid(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _seconds(found: Spread | None, name: str) -> str:
    return "-" if found is None else f"{getattr(found, name):.3g} s"


def _milliseconds(found: Spread | None, name: str) -> str:
    return "-" if found is None else f"{1e3 * getattr(found, name):.1f} ms"


def _bytes(size: int) -> str:
    value = float(size)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} PB"
