"""A replay from traffic to record."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from antiphon_server.bench.replay.forecast import forecast
from antiphon_server.bench.replay.idle import idle
from antiphon_server.bench.replay.play import Manner, Played, Player
from antiphon_server.bench.replay.record import Ratio, Replay, Served, ratio_of, rows_of, total_of
from antiphon_server.bench.replay.script import Script, Size
from antiphon_server.bench.replay.scripts import Choice, scripts
from antiphon_server.bench.replay.target import Target
from antiphon_server.bench.replay.watcher import Watcher
from antiphon_server.traces.trace import Trace

Wanted = tuple[str, str, float]
"""Slow arm, fast arm, least ratio."""


def wanted(texts: Sequence[str]) -> tuple[Wanted, ...]:
    """Of ``SLOW/FAST=X`` each.

    Raises:
        ValueError: another form.
    """
    found = []
    for text in texts:
        arms, _, ratio = text.partition("=")
        slow, _, fast = arms.partition("/")
        try:
            least = float(ratio)
        except ValueError:
            least = 0.0
        if not (slow and fast and 0 < least < math.inf):
            raise ValueError(f"--at-least {text!r} asks for nothing known: write it like reuse/auto=1.3")
        found.append((slow, fast, least))
    return tuple(found)


def run(
    target: Target,
    trace: Trace,
    size: Size,
    manner: Manner,
    choice: Choice,
    *,
    sources: tuple[str, ...],
    tools: bool,
    warm: bool,
    least: Sequence[Wanted],
    console: Console,
) -> Replay:
    """Play ``trace`` against ``target``.

    Raises:
        ValueError: there is nothing to play, or ``least`` names no arm.
        GoneError: nothing answers.
    """
    names = tuple(arm.name for arm in target.arms)
    for name in (name for slow, fast, _ in least for name in (slow, fast)):
        if name not in names:
            raise ValueError(f"--at-least names {name!r}, which is no arm here: these are {', '.join(names)}")
    played = scripts(trace, size=size, pace=manner.pace, ruler=manner.ruler, choice=choice, tools=tools)
    planned = sum(len(script.turns) for script in played)
    setting = _setting(trace, played, size, manner, choice, warm)
    length = forecast(played, manner.pace, clients=manner.clients, arms=len(names))
    for line in (*trace.notes, *setting, *([length] if length else [])):
        console.print(line, markup=False, highlight=False)
    with _Screen(console, planned * len(names)) as watcher, _quiet():
        found = asyncio.run(_play(target, manner, played, watcher, warm))
    return Replay(
        sources=sources,
        setting=setting,
        arms=names,
        rows=rows_of(names, found.turns, found.waits),
        totals=tuple(
            total_of(
                name,
                found.turns,
                planned=planned,
                seconds=found.seconds.get(name, 0.0),
                prefill=found.prefill.get(name),
                decode=found.decode.get(name),
                declined=found.declined.get(name),
            )
            for name in names
        ),
        ratios=_ratios(names, found.turns, least),
        compared=found.compared,
        differences=tuple(found.differences),
        conditions=target.conditions,
        turns=tuple(found.turns),
        stopped=found.stopped,
        idle=tuple(idle([arm.name for arm in target.arms if arm.stamps], found.turns)),
    )


async def _play(
    target: Target, manner: Manner, played: Sequence[Script], watcher: Watcher, warm: bool
) -> Played:
    player = Player(manner, target.arms, engines=target.engines, watcher=watcher)
    try:
        if warm:
            await player.warm_up()
        await player.play(played)
    except asyncio.CancelledError:  # by Ctrl-C: what was measured is shown
        if not player.played.turns:
            raise
        player.played.stopped = "interrupted"
    finally:
        await player.close()
    return player.played


def _ratios(names: Sequence[str], turns: Sequence[Served], least: Sequence[Wanted]) -> tuple[Ratio, ...]:
    """Those asked for, last; before them, every arm over the last one."""
    asked = {(slow, fast): ratio for slow, fast, ratio in least}
    pairs = [(name, names[-1]) for name in names[:-1] if (name, names[-1]) not in asked]
    found = []
    for slow, fast in (*pairs, *asked):
        ratio = ratio_of(slow, fast, turns, asked.get((slow, fast)))
        if ratio is not None:
            found.append(ratio)
        elif (slow, fast) in asked:
            found.append(Ratio(slow, fast, 0.0, 0.0, asked[slow, fast]))
    return tuple(found)


def _setting(
    trace: Trace, played: Sequence[Script], size: Size, manner: Manner, choice: Choice, warm: bool
) -> tuple[str, ...]:
    turns = sum(len(script.turns) for script in played)
    drawn = "" if choice.seed is None else f", drawn with seed {choice.seed}"
    longest = "" if size.longest_answer is None else f", answers of {size.longest_answer} tokens at most"
    at_once = f"{manner.clients} at once" if manner.clients > 1 else "one after the other"
    return (
        f"{len(played)} of {len(trace.conversations)} conversations ({trace.format}){drawn}, {turns} turns; "
        f"a token stands for {size.scale:g}{longest}",
        f"{at_once}, {manner.pace}{', warmed up' if warm else ''}; temperature 0, "
        f"{'answers of recorded length' if manner.exact else 'answers end by themselves'}",
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The SDK warns of histories that were rewritten: a record's are what they are."""
    log = logging.getLogger("antiphon")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


class _Screen(Watcher):
    """A bar in a terminal; elsewhere a line for each turn."""

    def __init__(self, console: Console, turns: int) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("replay", total=turns)

    def __enter__(self) -> _Screen:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, arm: str, conversations: int) -> None:
        self._progress.update(self._task, description=arm)

    def turn(self, served: Served) -> None:
        self._progress.advance(self._task)
        if served.error is not None:
            self._console.print(
                f"{served.arm}, {served.conversation}, turn {served.turn}: {served.error}",
                markup=False,
                highlight=False,
            )
        elif not self._console.is_terminal:
            self._console.print(
                f"{served.arm:<8} {served.conversation} #{served.turn:<3} {served.prompt:>7} tokens  "
                f"TTFT {served.ttft * 1000:8.1f} ms  {served.path} ({served.reason}), "
                f"{served.matched} matched",
                markup=False,
                highlight=False,
            )

    def left_out(self, turns: int) -> None:
        self._progress.advance(self._task, turns)
