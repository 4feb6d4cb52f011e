"""What is to be minded beside a verdict, in words and figures. Pure."""

from __future__ import annotations

from antiphon_server.advise import reasons
from antiphon_server.advise.case import (
    GONE,
    GUESSED,
    KNOWN,
    LOCAL,
    MANY_CONVERSATIONS,
    MANY_RETURNS,
    MOSTLY,
    REWRITTEN,
    Case,
)
from antiphon_server.advise.percent import percent
from antiphon_server.advise.reasons import Cause, Reason


def cautions(case: Case) -> tuple[Reason, ...]:
    """Whatever the verdict is."""
    found, held, link = case.repetition, case.retention, case.interconnect
    cautions: list[Reason] = []
    if held.known >= KNOWN and case.hinges:
        cautions.append(reasons.unseen(case))
    if held.known >= KNOWN and held.gone >= GONE:
        cautions.append(reasons.gone(case))
    lost = found.lost / (found.lost + found.repeated) if found.lost + found.repeated else 0.0
    if lost >= REWRITTEN or found.rewritten_share >= REWRITTEN:
        text = (
            f"{percent(found.rewritten_share)} of later turns change their history (compaction, trimming, "
            f"dropped thoughts): {percent(lost)} of what decode held is lost by it."
        )
        cautions.append(Reason(Cause.REWRITTEN, text))
    if case.fits is not None and case.fits < 1.0:
        cautions.append(reasons.crowded(case))
    if link.slow:
        cautions.append(reasons.short(case))
    if case.cached is not None and case.cached >= LOCAL:
        cautions.append(reasons.warm_cache(case))
    if found.returning < MANY_RETURNS or found.conversations < MANY_CONVERSATIONS:
        cautions.append(
            Reason(
                Cause.FEW,
                f"{reasons.returning(found)}: take this for a first look, and log more.",
            )
        )
    if KNOWN <= held.known < MOSTLY:
        cautions.append(reasons.few_times(case))
    if found.told < MOSTLY:
        cautions.append(reasons.untold(case))
    if case.estimated:
        cautions.append(Reason(Cause.ESTIMATED, "Lengths are estimated from text, as the log has no usage."))
    if held.known >= KNOWN and case.pays and not case.clear:
        text = f"The gain is small: {percent(case.gain)} of the mean TTFT, {case.saved * 1e3:.0f} ms a turn."
        cautions.append(Reason(Cause.SMALL, text))
    return tuple(cautions)


def unnamed(case: Case) -> tuple[Reason, ...]:
    """What pays only once clients name their conversations."""
    if case.guessed < GUESSED:
        return ()
    text = (
        f"{percent(case.guessed)} of the calls name no conversation; here they were put together by what "
        "they repeat, which the router does not do. Nothing is reused before ids are sent: wrap the client "
        "with the SDK, or send the header X-Session-ID."
    )
    return (Reason(Cause.ANONYMOUS, text),)
