"""All that is found out about a user's traffic. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from antiphon_server.advise.case import MANY_CONVERSATIONS, Case
from antiphon_server.advise.crowd import SHARE, Crowd, crowd
from antiphon_server.advise.curves import Curves, curves
from antiphon_server.advise.fate import Fate, Keep, fates, supposed
from antiphon_server.advise.fitted import Fitted, from_log
from antiphon_server.advise.fleet import Fleet, fleet
from antiphon_server.advise.funnel import Funnel, funnel
from antiphon_server.advise.hardware import Given, Hardware, hardware
from antiphon_server.advise.interconnect import Interconnect, interconnect
from antiphon_server.advise.latency import Latency, Logged, cached_share, latency, logged
from antiphon_server.advise.outlook import Policy, outlooks
from antiphon_server.advise.percent import percent
from antiphon_server.advise.repetition import Repetition, repetition
from antiphon_server.advise.retention import Retention, retention
from antiphon_server.advise.settings import OFF, Settings, best_keep, settings
from antiphon_server.advise.turn import Turn
from antiphon_server.advise.turns import has_clock, turns_of
from antiphon_server.advise.verdict import Judgement, Verdict, judge
from antiphon_server.router.plan.reasons import Reason
from antiphon_server.traces.trace import Trace


class NoTurnsError(ValueError):
    """There is no model call to look at."""


@dataclass(frozen=True, slots=True)
class Asked:
    """``keep``: seconds, None: the best. ``gap``: seconds, for turns whose gap the log does not tell.
    ``measured``: engines as they were; ``fit_log``: take the log's own TTFT for it.
    ``conversations``: active at once, None: as the log tells, if it has many. ``decodes``: engines."""

    given: Given = field(default_factory=Given)
    keep: float | None = None
    gap: float | None = None
    measured: Fitted | None = None
    fit_log: bool = False
    conversations: float | None = None
    decodes: int = 1


@dataclass(frozen=True, slots=True)
class Source:
    """``notes``: what was left out or assumed."""

    format: str
    estimated: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Advice:
    """``room``: conversations, as long as they end, that one engine's cache holds; ``crowd``: that decode's
    holds; None: unknown. ``fleet``, ``crowd``: None, too, where the log does not tell enough to judge."""

    source: Source
    hardware: Hardware
    judgement: Judgement
    settings: Settings
    repetition: Repetition
    interconnect: Interconnect
    retention: Retention
    cold: Latency
    warm: Latency
    logged: tuple[Logged, ...]
    cached: float | None
    funnel: Funnel
    fleet: Fleet | None
    room: float | None
    crowd: Crowd | None
    curves: Curves

    @property
    def sized(self) -> bool:
        """Enough is known to say what is pinned, and what so much traffic takes."""
        return self.judgement.verdict is not Verdict.UNKNOWN


def advise(trace: Trace, asked: Asked) -> Advice:
    """Look at a trace.

    Raises:
        NoTurnsError: it has no calls with a prompt.
        UnknownHardwareError: what was said of the engines does not do.
        FitError: they are to be fitted to the log, and it does not do.
    """
    turns = turns_of(trace)
    engines = hardware(asked.given, from_log(turns) if asked.fit_log else asked.measured)
    if not any(turn.prompt for turn in turns):
        raise NoTurnsError("no call with prompt tokens is in these logs: nothing can be said of them")
    notes = [note.partition(", first ")[0] for note in trace.notes]  # no names of files
    if asked.gap is not None:
        turns, filled = _filled(turns, asked.gap)
        if filled:
            notes.append(f"{filled} gaps that the log does not tell are taken for {asked.gap:g} s")
    if trace.block_size is not None and any(turn.index for turn in turns):
        notes.append("the log has blocks of prompts, not of answers: answers are taken to repeat")
    if engines.longest is not None and (beyond := _beyond(turns, engines.longest)) > 0.0:
        notes.append(
            f"extrapolated beyond {engines.longest:,} tokens, the longest prompt that was measured: "
            f"{percent(beyond)} of the prompt tokens are in longer ones"
        )
    clock = has_clock(trace, turns)
    return _advice(trace, tuple(notes), turns, asked, engines, clock)


def _beyond(turns: Sequence[Turn], longest: int) -> float:
    """Share of the prompt tokens that are in prompts longer than that."""
    return sum(t.prompt for t in turns if t.prompt > longest) / sum(turn.prompt for turn in turns)


def _filled(turns: Sequence[Turn], gap: float) -> tuple[list[Turn], int]:
    unknown = [turn.index > 0 and turn.gap is None for turn in turns]
    found = [replace(t, gap=gap) if lacks else t for t, lacks in zip(turns, unknown, strict=True)]
    return found, sum(unknown)


def _advice(
    trace: Trace, notes: tuple[str, ...], turns: list[Turn], asked: Asked, engines: Hardware, clock: bool
) -> Advice:
    budget = int(engines.capacity * asked.decodes * SHARE) if engines.capacity is not None else None
    keep = asked.keep if asked.keep is not None else _keep(turns, asked, engines)
    found = fates(turns, Keep(keep=keep, budget=budget), clock=clock)
    held = retention(turns, found, keep)
    many = len({turn.conversation for turn in turns}) >= MANY_CONVERSATIONS
    followed = clock and asked.conversations is None  # then what had to make room is known turn by turn
    conversations = asked.conversations or (held.active if many else None)
    holds = crowd(
        engines.capacity and engines.capacity * asked.decodes,
        held.chosen.pinned,
        active=conversations,
        followed=followed,
    )
    policy = Policy()
    likely = supposed(found.fates)
    off, warm = (outlooks(turns, likely, engines, policy, warm=state) for state in (False, True))
    # Were every turn to come back in time: what speaks against reuse even then is not decode's memory.
    dreams = [Fate.KEPT if turn.index else Fate.FIRST for turn in turns]
    hoped = outlooks(turns, dreams, engines, policy, warm=False)
    link = interconnect(turns, off, engines)
    repeated = repetition(turns)
    cold_ttft, warm_ttft, hoped_ttft = latency(off), latency(warm), latency(hoped)
    assert cold_ttft is not None
    assert warm_ttft is not None
    assert hoped_ttft is not None
    room = engines.capacity / repeated.end if engines.capacity and repeated.end else None
    case = Case(
        repeated,
        link,
        held,
        cold_ttft,
        warm_ttft,
        hoped_ttft,
        funnel(turns, found.fates, off),
        funnel(turns, dreams, hoped),
        keep,
        cached=cached_share(turns),
        anonymous=sum(turn.reason == Reason.ANONYMOUS for turn in turns) / len(turns),
        guessed=sum(len(c.calls) for c in trace.conversations if c.guessed) / len(turns),
        reuses=engines.reuses,
        estimated=trace.estimated,
        room=room,
        fits=holds.fits if holds is not None else None,
    )
    judgement = judge(case)
    sure = judgement.verdict is not Verdict.UNKNOWN
    needs = fleet(turns, off, warm, held.chosen, engines.capacity) if sure else None
    return Advice(
        Source(trace.format, trace.estimated, notes),
        engines,
        judgement,
        OFF
        if judgement.verdict is Verdict.OFF
        else settings(
            link,
            held,
            capacity=engines.capacity,
            conversations=conversations,
            decodes=asked.decodes,
            fleet=needs,
            sure=sure,
        ),
        repeated,
        link,
        held,
        cold_ttft,
        warm_ttft,
        logged(turns),
        case.cached,
        case.funnel,
        needs,
        room,
        holds if sure else None,
        curves(turns, engines, held, off, warm),
    )


def _keep(turns: Sequence[Turn], asked: Asked, engines: Hardware) -> float:
    """The best one, as far as gaps are known and as decode's memory allows."""
    longest = Keep(keep=480.0)
    first = retention(turns, fates(turns, longest, clock=False), longest.keep)
    if not first.known:
        return longest.keep
    room = None
    if engines.capacity is not None and asked.conversations:
        room = engines.capacity * asked.decodes * SHARE / asked.conversations
    return best_keep(first.options, room).keep
