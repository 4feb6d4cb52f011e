"""Where the tokens of all prompts go: what reuse saves, and what it loses on the way. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_server.advise.fate import Fate
from antiphon_server.advise.outlook import Outlook
from antiphon_server.advise.turn import Turn
from antiphon_server.router.plan.reasons import Path


@dataclass(frozen=True, slots=True)
class Funnel:
    """Tokens of all prompts; they add up to ``total``. ``first``: of first turns. ``fresh``: new in later
    turns. ``rewritten``: new there because the history was changed. ``gone``: repeated, but decode had given
    them up. ``unknown``: repeated, after a gap that the log does not tell. ``short``: repeated and there, but
    not worth fetching. ``used``: repeated, there, and used."""

    total: int
    first: int
    fresh: int
    rewritten: int
    gone: int
    unknown: int
    short: int
    used: int

    def share(self, tokens: int) -> float:
        """Of all."""
        return tokens / self.total if self.total else 0.0


def funnel(turns: Sequence[Turn], fates: Sequence[Fate], outlooks: Sequence[Outlook]) -> Funnel:
    """``outlooks``: where prefill's cache is cold."""
    first = fresh = rewritten = gone = unknown = short = used = 0
    for turn, fate, outlook in zip(turns, fates, outlooks, strict=True):
        if not turn.index:
            first += turn.prompt
            continue
        new = turn.prompt - turn.repeated
        changed = min(turn.lost, new)
        rewritten, fresh = rewritten + changed, fresh + new - changed
        if fate is Fate.UNKNOWN:
            unknown += turn.repeated
        elif fate is not Fate.KEPT:
            gone += turn.repeated
        elif outlook.path is Path.COLD:
            short += turn.repeated
        else:
            used += turn.repeated
    total = sum(turn.prompt for turn in turns)
    return Funnel(total, first, fresh, rewritten, gone, unknown, short, used)
