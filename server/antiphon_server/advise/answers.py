"""The announcement's four questions, answered in words and figures, for terminal and report alike. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_server.advise.advice import Advice
from antiphon_server.advise.crowd import SHARE, Crowd
from antiphon_server.advise.latency import Latency
from antiphon_server.advise.percent import percent
from antiphon_server.advise.retention import Retention
from antiphon_server.quantiles import Spread


@dataclass(frozen=True, slots=True)
class Table:
    """``head``: of the columns."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """``text``: one or more sentences. ``name``: of its pictures."""

    name: str
    question: str
    text: tuple[str, ...]
    table: Table | None = None


def answers(advice: Advice) -> tuple[Answer, ...]:
    """All four, in the announcement's order."""
    return _repeats(advice), _link(advice), _kept(advice), _ttft(advice)


def traffic(advice: Advice) -> str:
    """What was looked at."""
    found = advice.repetition
    calls = _counted(found.calls, "call")
    return (
        f"{calls} in {_counted(found.conversations, 'conversation')}, {tokens(found.tokens)} prompt tokens "
        f"({advice.source.format}); {advice.hardware.name}"
    )


def _nearly(share: float) -> str:
    return "more than 99%" if share > 0.99 else f"{percent(share)} or more"


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def seconds(value: float) -> str:
    """A duration, short."""
    if value < 0.9995:
        return f"{value * 1e3:.0f} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 5400:
        return f"{value:,.0f} s"
    if value < 172_800:
        return f"{value / 3600:,.1f} h"
    return f"{value / 86_400:,.0f} days"


def gigabytes(value: float) -> str:
    """A rate, short."""
    return f"{value:.0f} GB/s" if value >= 9.95 else f"{value:.2g} GB/s"


def tokens(value: float) -> str:
    """A number of tokens, short."""
    if value < 9_999.5:
        return f"{value:,.0f}"
    if value < 999_500:
        return f"{value / 1e3:,.0f}k"
    return f"{value / 1e6:,.1f}M" if value < 999.5e6 else f"{value / 1e9:,.1f}B"


def _repeats(advice: Advice) -> Answer:
    found = advice.repetition
    half = ""
    if found.typical is not None:
        half = f"; half of these turns repeat {_nearly(found.typical)}"
    text = [
        f"{percent(found.share)} of the prompt tokens of later turns repeat the turn before{half}.",
        f"Prompts grow from {tokens(found.start)} to {tokens(found.end)} tokens in a conversation (medians).",
    ]
    if found.returning:
        text.append(
            f"{percent(found.answer_share)} of what prefill must compute on later turns, if its cache is "
            "warm, is the last answer, which decode has."
        )
    if found.rewritten:
        text.append(
            f"{found.rewritten} of {found.returning} later turns changed their history and lost more than a "
            f"tenth of it: {tokens(found.lost)} tokens in all."
        )
    rows = tuple(
        (
            f"{stage.first}" if stage.first == stage.last else f"{stage.first}-{stage.last or ''}",
            f"{stage.turns:,}",
            tokens(stage.prompt),
            percent(stage.share),
        )
        for stage in found.stages
    )
    return Answer(
        "repeats",
        "How much of the prefix repeats between turns, and how does it grow?",
        tuple(text),
        Table(("turn", "turns", "prompt, median", "repeats"), rows),
    )


def _link(advice: Advice) -> Answer:
    link = advice.interconnect
    if link.break_even is None:
        first = "Computing is always faster than fetching: the interconnect does not suffice for any prefix."
    else:
        first = (
            f"Fetching a prefix is no slower than computing it from {link.break_even:,} tokens on; "
            f"{percent(link.above)} of what repeats is in longer ones."
        )
    text = [first]
    if link.typical:
        text.append(
            f"The typical prefix, {tokens(link.typical)} tokens, takes {seconds(link.moving)} to fetch at "
            f"{gigabytes(link.gigabytes)} and {seconds(link.computing)} to compute."
        )
    if link.gigabytes_needed is not None:
        verb = "suffice" if link.gigabytes_needed <= link.gigabytes else "would be needed"
        text.append(f"For half the time of computing, {gigabytes(link.gigabytes_needed)} {verb}.")
    if link.moved:
        text.append(f"{link.moved:.2f} GB move from decode to prefill a later turn, on average.")
    return Answer("link", "Does the interconnect between prefill and decode suffice?", tuple(text))


def _kept(advice: Advice) -> Answer:
    held = advice.retention
    question = "How long does decode keep the cache, and how often is it gone before the next turn?"
    if not held.gaps:
        return Answer("kept", question, ("The log does not tell the time between turns.",))
    gaps, by_tokens = dict(held.gaps), dict(held.gaps_by_tokens)
    chosen = held.chosen
    text = [
        f"Half of the turns come back within {seconds(gaps[0.5])}, nine in ten within {seconds(gaps[0.9])}, "
        f"95% within {seconds(gaps[0.95])}; by tokens that repeat, half within "
        f"{seconds(by_tokens.get(0.5, 0.0))}, 95% within {seconds(by_tokens.get(0.95, 0.0))}.",
        f"Kept for {seconds(chosen.keep)}, {percent(held.gone)} of what repeats is gone before it is wanted"
        f"{_why_gone(held)}.",
    ]
    if held.known < 0.995:
        text.append(f"The gap is known for {percent(held.known)} of what repeats.")
    if advice.sized and chosen.pinned:
        said = (
            f"A turn pins its KV for {seconds(chosen.held)} on average; for each active conversation "
            f"{tokens(chosen.pinned)} tokens are pinned"
        )
        capacity = advice.hardware.capacity
        if capacity:
            said += f", of the {tokens(capacity)} that a decode engine has"
        text.append(f"{said}.")
    if advice.crowd is not None and not advice.crowd.judged:
        text.append(_unjudged(advice.crowd))
    if advice.sized and held.pinned_most:
        text.append(
            f"In this log at most {tokens(held.pinned_most)} tokens were pinned at once, "
            f"{tokens(held.pinned_mean or 0)} on average."
        )
    rows = tuple(
        (
            f"{seconds(option.keep)}{', chosen' if option is chosen else ''}",
            percent(option.found),
            seconds(option.held),
            tokens(option.pinned) if option.pinned else "-",
        )
        for option in held.options
    )
    head = ("keep", "still there", "pins for", "pinned")
    shown = 4 if advice.sized else 2
    table = Table(head[:shown], tuple(row[:shown] for row in rows))
    return Answer("kept", question, tuple(text), table)


def _unjudged(crowd: Crowd) -> str:
    held, kept = (
        _counted(int(number), "conversation") if number >= 1 else "less than one conversation"
        for number in (crowd.held, crowd.kept)
    )
    return (
        f"So decode's KV has room for {held}; the {SHARE:.0%} of it that the router keeps for them by "
        f"default, for {kept}. The log does not tell how many are active at once, so whether that is enough "
        "was not judged: pass --conversations."
    )


def _why_gone(held: Retention) -> str:
    causes = (
        (held.idle, "comes later"),
        (held.chance, "is given up early, as hardly any turn comes so late"),
        (held.evicted, "makes room for others"),
        (held.busy, "is asked for while the turn before is in flight"),
    )
    told = [f"{percent(share)} {words}" for share, words in causes if share >= 0.005]
    return f": {', '.join(told)}" if told else ""


def _ttft(advice: Advice) -> Answer:
    cold, warm = advice.cold, advice.warm
    text = [
        f"If prefill's own cache is cold, expected p95 {_goes(cold.off.p95, cold.on.p95)} and p99 "
        f"{_goes(cold.off.p99, cold.on.p99)}; if it is warm, p95 {_goes(warm.off.p95, warm.on.p95)} and p99 "
        f"{_goes(warm.off.p99, warm.on.p99)}.",
        "First turns, and turns whose KV is gone or not worth fetching, stay as they are: "
        f"{percent(_path(cold, 'cold'))} of all.",
    ]
    if advice.cached is not None:
        text.append(f"Prefill's own cache had {percent(advice.cached)} of what it could have, by the log.")
    rows = [
        _row("cache cold, without", cold.off),
        _row("cache cold, with reuse", cold.on),
        _row("cache warm, without", warm.off),
        _row("cache warm, with reuse", warm.on),
    ]
    rows += [_row(f"logged{f', {part.path}' if part.path else ''}", part.ttft) for part in advice.logged]
    return Answer(
        "ttft",
        "What do p95 and p99 of TTFT do, not only the best case?",
        tuple(text),
        Table(("TTFT", "turns", "mean", "p50", "p95", "p99"), tuple(rows)),
    )


def _goes(before: float, after: float) -> str:
    if seconds(before) == seconds(after):
        return f"stays at {seconds(after)}"
    return f"goes from {seconds(before)} to {seconds(after)}"


def _row(name: str, spread: Spread) -> tuple[str, ...]:
    figures = (spread.mean, spread.p50, spread.p95, spread.p99)
    return (name, f"{spread.count:,}", *map(seconds, figures))


def _path(latency: Latency, path: str) -> float:
    return dict(latency.paths).get(path, 0.0)


def method(advice: Advice) -> tuple[str, ...]:
    """How the figures came about, and what is not in them."""
    clock = ", all conversations side by side"
    if not advice.retention.timeline:
        clock = "; the log does not tell what ran at once, so nothing had to make room"
    return (
        "Expected TTFT comes from the router's own forecast and plan, with one rate for computing, attention "
        "in proportion to what stands before, and one for moving, each with a fixed part. It is a model, not "
        "a measurement: waiting behind other turns, tokenising, and steps shared with others are not in it.",
        "Where decode still had the KV follows from the log's gaps by the router's own rules for keeping"
        f"{clock}.",
        "Cold: prefill's own prefix cache has nothing of the conversation (evicted, restarted, or another "
        "engine than last time). Warm: it has all of the last prompt. Neither is promised as the other.",
        "Quantiles are of turns unless they are said to be of tokens.",
    )
