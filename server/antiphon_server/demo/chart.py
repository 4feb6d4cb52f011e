"""The demo as a picture."""

from __future__ import annotations

from pathlib import Path

from antiphon_server.bench.picture import BLUE, GREY, INK, MUTED, PALE, axes_of, save, sheet
from antiphon_server.demo.record import Record, totals

WIDTH = 0.38


def draw(record: Record, path: Path) -> None:
    """Write a PNG: TTFT per turn without and with reuse, and what prefill had to compute."""
    rows = [row for row in record.rows if row.without and row.reusing]
    without, reusing = totals(rows, first=1)
    verdict = "answers identical" if record.verdict.identical else "ANSWERS DIFFER"
    sooner = (
        f"First tokens of turns 2 to {len(rows)} come {without / reusing:.1f}x sooner, " if reusing else ""
    )
    title = f"{sooner}{verdict}"
    figure = sheet(title, record.conditions.lines())
    times, tokens = figure.subplots(1, 2, width_ratios=(3, 2))
    places = range(len(rows))

    axes_of(times, "Time to first token, seconds")
    left = [row.without.timed.ttft if row.without else 0.0 for row in rows]
    right = [row.reusing.timed.ttft if row.reusing else 0.0 for row in rows]
    times.bar([x - WIDTH / 2 for x in places], left, WIDTH, color=GREY, label="without reuse")
    times.bar([x + WIDTH / 2 for x in places], right, WIDTH, color=BLUE, label="with reuse")
    for x, row in enumerate(rows):
        if x and row.ratio is not None:
            times.annotate(
                f"{row.ratio:.1f}x",
                (x + WIDTH / 2, right[x]),
                xytext=(1, 3),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=BLUE,
                weight="bold",
            )
    times.set_xticks(list(places), [f"{row.turn}\n{row.name.replace('_', chr(10))}" for row in rows])
    times.set_ylim(top=times.get_ylim()[1] * 1.15)
    times.legend(frameon=False, loc="upper left", labelcolor=INK)

    axes_of(tokens, "Prompt tokens, with reuse")
    matched = [row.reusing.timed.outcome.matched if row.reusing else 0 for row in rows]
    computed = [
        (row.reusing.timed.prompt_tokens if row.reusing else 0) - m
        for row, m in zip(rows, matched, strict=True)
    ]
    tokens.bar(places, matched, 0.62, color=PALE, label="from decode's KV")
    tokens.bar(places, computed, 0.62, bottom=matched, color=BLUE, label="computed by prefill")
    tokens.set_xticks(list(places), [str(row.turn) for row in rows])
    tokens.set_xlabel("turn", color=MUTED)
    tokens.legend(frameon=False, loc="upper left", labelcolor=INK)
    tokens.set_ylim(top=tokens.get_ylim()[1] * 1.18)
    save(figure, path)
