"""Whether to turn two-way KV reuse on. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from antiphon_server.advise import cautions as minded
from antiphon_server.advise import reasons
from antiphon_server.advise.case import FEW_RETURNS, KNOWN, ROOM, Case
from antiphon_server.advise.reasons import Reason


class Verdict(StrEnum):
    """The answer, in words."""

    ON = "turn it on"
    CARE = "turn it on with care"
    OFF = "do not turn it on"
    UNKNOWN = "not enough data"


@dataclass(frozen=True, slots=True)
class Judgement:
    """``reasons``: what the verdict follows from, the weightiest first. ``cautions``: what to mind."""

    verdict: Verdict
    reasons: tuple[Reason, ...]
    cautions: tuple[Reason, ...] = ()


def judge(case: Case) -> Judgement:
    """The first of these that holds: it cannot work; nothing can be said; it does not pay; it pays."""
    if not case.reuses:
        return Judgement(Verdict.OFF, (reasons.window(),))
    if (why := reasons.one_shot(case)) is not None:
        return Judgement(Verdict.OFF, (why,))
    if case.repetition.returning < FEW_RETURNS:
        return Judgement(Verdict.UNKNOWN, (reasons.few(case),))
    if case.repetition.told < KNOWN:
        return Judgement(Verdict.UNKNOWN, (reasons.untold(case),))
    cautions = minded.cautions(case)
    if case.too_short or not case.could_pay:
        return Judgement(Verdict.OFF, reasons.losses(case), cautions)
    if case.retention.known < KNOWN:
        return Judgement(Verdict.UNKNOWN, (reasons.times(case),), cautions)
    if case.fits is not None and case.fits < ROOM:
        return Judgement(Verdict.OFF, (reasons.crowded(case),), cautions)
    if not case.pays:
        return Judgement(Verdict.OFF, reasons.unpaid(case), cautions)
    cautions = (*minded.unnamed(case), *cautions)
    verdict = Verdict.ON if case.clear and not cautions else Verdict.CARE
    return Judgement(verdict, (reasons.gain_of(case),), cautions)
