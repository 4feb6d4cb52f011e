"""What speaks for and against, in words and figures. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from antiphon_server.advise.case import (
    ANONYMOUS,
    FEW_RETURNS,
    GONE,
    LONG_ENOUGH,
    Case,
)
from antiphon_server.advise.percent import percent
from antiphon_server.advise.repetition import Repetition


class Cause(StrEnum):
    """What a reason is about."""

    GAIN = "gain"
    SMALL = "small gain"
    ONE_SHOT = "one-shot traffic"
    NEW = "little repeats"
    REWRITTEN = "histories are rewritten"
    GAPS = "gaps too long"
    EVICTED = "decode's memory too small"
    PARALLEL = "turns side by side"
    SHORT = "prefixes too short"
    INTERCONNECT = "interconnect too slow"
    WARM = "prefill's cache has it already"
    UNSEEN = "prefill's cache not known"
    UNSUPPORTED = "model not supported"
    ANONYMOUS = "no conversation ids"
    TIMES = "no times"
    UNTOLD = "repetition not known"
    FEW = "few turns"
    ESTIMATED = "lengths estimated"


@dataclass(frozen=True, slots=True)
class Reason:
    """``text``: a sentence with the figures, for people."""

    cause: Cause
    text: str


def one_shot(case: Case) -> Reason | None:
    """Nothing comes back, or nothing tells what does."""
    found = case.repetition
    if case.anonymous >= ANONYMOUS:
        text = (
            f"{percent(case.anonymous)} of the turns name no conversation, so nothing can be kept for them. "
            "Let clients send ids (wrap them with the SDK), log again, and run this again."
        )
        return Reason(Cause.ANONYMOUS, text)
    if found.single == found.conversations and found.conversations >= FEW_RETURNS:
        text = (
            f"All {found.conversations:,} conversations have one call: no turn comes back to what was kept. "
            "If they are turns of longer conversations, the log lacks their ids."
        )
        return Reason(Cause.ONE_SHOT, text)
    return None


def window() -> Reason:
    text = (
        "This model has layers with a sliding window: engines decline to reuse its KV, since a part of it "
        "cannot be cut to a common prefix. Turns are served as plain prefill/decode."
    )
    return Reason(Cause.UNSUPPORTED, text)


def few(case: Case) -> Reason:
    found = case.repetition
    text = f"{returning(found)}: log more."
    return Reason(Cause.FEW, text)


def times(case: Case) -> Reason:
    gain = case.hoped
    text = (
        f"The log tells the time before the next turn for {percent(case.retention.known)} of what repeats, "
        f"and all depends on it: KV is kept for {case.keep:.0f} s. If every turn came back in time, mean "
        f"TTFT would fall by {percent(gain.gain)} ({gain.off.mean:.2f} s to {gain.on.mean:.2f} s) where "
        "prefill's cache is cold. Log times, or pass --gap SECONDS to try one."
    )
    return Reason(Cause.TIMES, text)


def few_times(case: Case) -> Reason:
    text = (
        f"The log tells the time before the next turn for {percent(case.retention.known)} of what repeats; "
        "the rest is taken to come back as these do. Log times."
    )
    return Reason(Cause.TIMES, text)


def untold(case: Case) -> Reason:
    text = (
        f"The log tells what repeats for {percent(case.repetition.told)} of later turns' prompt tokens only. "
        "Log requests with their messages, or run the router with reuse for a while: its log tells it of "
        "turns that reused."
    )
    return Reason(Cause.UNTOLD, text)


def losses(case: Case) -> tuple[Reason, ...]:
    """Why it would not pay even if every turn came back in time: where the tokens go."""
    found, part = case.repetition, case.hoped_funnel
    reasons = []
    if case.interconnect.above < LONG_ENOUGH or part.short > part.used:
        reasons.append(short(case))
    ranked = sorted(
        (
            (part.first, Cause.ONE_SHOT, "are in the first turn of their conversation"),
            (part.fresh, Cause.NEW, "are new in later turns"),
            (part.rewritten, Cause.REWRITTEN, "are new because the history was changed before them"),
        ),
        reverse=True,
    )
    for tokens, cause, words in ranked:
        if part.share(tokens) >= 0.3:
            reasons.append(Reason(cause, f"{percent(part.share(tokens))} of all prompt tokens {words}."))
    gain = case.hoped
    text = (
        f"Even if every turn came back in time, mean TTFT would fall by {percent(max(0.0, gain.gain))} "
        f"({gain.off.mean * 1e3:.0f} ms to {gain.on.mean * 1e3:.0f} ms), {percent(found.share)} of later "
        "prompts repeating."
    )
    return (*reasons, Reason(Cause.SMALL, text))


def short(case: Case) -> Reason:
    link = case.interconnect
    if link.slow:
        never = (
            "is never faster" if link.break_even is None else f"pays from {link.break_even:,} tokens on only"
        )
        needed = f"; {link.gigabytes_needed:.0f} GB/s would do" if link.gigabytes_needed else ""
        text = (
            f"Fetching KV {never}: the interconnect gives {link.gigabytes:.1f} GB/s, and a typical prefix of "
            f"{link.typical:,} tokens takes {link.moving:.2f} s to fetch and {link.computing:.2f} s to "
            f"compute{needed}. Appends move nothing."
        )
        return Reason(Cause.INTERCONNECT, text)
    text = (
        f"Fetching KV pays from {link.break_even:,} tokens on; the typical prefix has {link.typical:,}, and "
        f"{percent(link.above)} of what repeats is in longer ones."
    )
    return Reason(Cause.SHORT, text)


def unpaid(case: Case) -> tuple[Reason, ...]:
    """Why it would pay if every turn came back in time, but does not."""
    reasons = []
    held = case.retention
    if held.gone >= GONE:
        reasons.append(gone(case))
    if case.cached is not None and case.pays_cold:
        reasons.append(warm_cache(case))
    text = (
        f"Mean TTFT would fall by {percent(max(0.0, case.gain))}, {max(0.0, case.saved) * 1e3:.0f} ms a turn."
    )
    return (*reasons, Reason(Cause.SMALL, text))


def crowded(case: Case) -> Reason:
    """Decode has no room for what is active."""
    text = (
        f"Even kept for {case.keep:.0f} s only, active conversations pin "
        f"{case.retention.chosen.pinned:,.0f} tokens each, and decode may keep {percent(case.fits or 0.0)} "
        "of what all of them pin: the rest is given up before its next turn. More decode engines, or fewer "
        "conversations on them, would change that."
    )
    return Reason(Cause.EVICTED, text)


def gone(case: Case) -> Reason:
    held = case.retention
    if held.busy > held.idle + held.chance + held.evicted:
        text = (
            f"{percent(held.busy)} of what repeats is in turns that begin while the one before is in flight: "
            "what is kept of a conversation goes to one turn at a time. Give parallel branches ids of their "
            "own."
        )
        return Reason(Cause.PARALLEL, text)
    if held.evicted > held.idle + held.chance:
        text = (
            f"{percent(held.evicted)} of what repeats would be given up to make room before the next turn: "
            "decode's memory holds fewer conversations than are active."
        )
        return Reason(Cause.EVICTED, text)
    if held.chance > held.idle:
        text = (
            f"{percent(held.gone)} of what repeats would be gone before the next turn, most of it as the "
            "router ends leases early: after so long hardly any conversation comes back (least_chance)."
        )
        return Reason(Cause.GAPS, text)
    gaps = dict(held.gaps_by_tokens)
    text = (
        f"{percent(held.gone)} of what repeats would be gone before the next turn: KV is kept for "
        f"{case.keep:.0f} s, half of it comes back after {gaps.get(0.5, 0):,.0f} s or more."
    )
    return Reason(Cause.GAPS, text)


def warm_cache(case: Case) -> Reason:
    text = (
        f"Prefill's own cache had {percent(case.cached or 0.0)} of what it could have: what is left for "
        f"decode to give are the answers, {percent(case.repetition.answer_share)} of what prefill computes "
        "then."
    )
    return Reason(Cause.WARM, text)


def unseen(case: Case) -> Reason:
    text = (
        "What is gained depends on whether prefill's own cache still holds the conversation, which this log "
        f"does not tell: where it does, only {max(0.0, case.warm.saved) * 1e3:.0f} ms a turn. Log cached "
        "tokens, which vLLM tells with --enable-prompt-tokens-details, or look at prefill's hit rate "
        "(vllm:prefix_cache_hits_total by vllm:prefix_cache_queries_total); antiphon bench sweep measures "
        "both states."
    )
    return Reason(Cause.UNSEEN, text)


def gain_of(case: Case) -> Reason:
    cold, warm = case.cold, case.warm
    if case.cached is None:
        text = (
            f"Expected mean TTFT falls by {percent(cold.gain)} ({cold.off.mean:.2f} s to {cold.on.mean:.2f} "
            f"s) where prefill's own cache does not have the conversation, by {percent(warm.gain)} "
            f"({warm.off.mean:.2f} s to {warm.on.mean:.2f} s) where it still has. The log does not say which "
            "is yours." + (f" {_room(case.room)}" if case.room is not None else "")
        )
    else:
        text = (
            f"Expected mean TTFT falls by {percent(case.gain)}, {case.saved * 1e3:.0f} ms a turn: prefill's "
            f"own cache had {percent(case.cached)} of what it could have (with none of it "
            f"{percent(cold.gain)}, with all {percent(warm.gain)})."
        )
    return Reason(Cause.GAIN, text)


def returning(found: Repetition) -> str:
    turns = "1 turn comes" if found.returning == 1 else f"{found.returning} turns come"
    many = "1 conversation" if found.conversations == 1 else f"{found.conversations} conversations"
    return f"{turns} back in {many}"


def _room(room: float) -> str:
    return (
        f"A prefill engine of this kind caches about {room:,.0f} conversations as long as yours get: with "
        "many more active on each, or after a restart or a move, it is cold."
    )
