"""The decision of a turn, pure: reuse what decode holds, or compute all. Append comes with measured rates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from antiphon_server.protocol import Match
from antiphon_server.router.frontier import Frontier


class Path(StrEnum):
    """How the prompt's KV came to be. ``append`` is reserved for turns that go straight to decode."""

    APPEND = "append"
    REUSE = "reuse"
    COLD = "cold"


class Reason(StrEnum):
    """Why a turn took its path; the last word of ``X-Antiphon-Reuse`` and a label of the metrics.

    Reuse, in prefill's words: ``full`` (all that decode held), ``cut`` (the common prefix), ``local``
    (prefill's own cache had it). ``planned``: prefill has not answered yet.

    Cold, decided before prefill: ``anonymous`` (no conversation id), ``first`` (nothing is known of the
    conversation), ``lost`` (its KV was evicted, closed, or never reported), ``busy`` (another turn of it
    holds the frontier), ``expired`` (the lease ended), ``restarted`` (the engine that held it has a new
    life), ``unhealthy`` (that engine, or all prefill engines, do not answer), ``stock`` (an engine without
    our plug-in), ``unsupported`` (an engine that cannot reuse), ``off`` (by settings).

    Cold, found by prefill: ``mismatch``, ``threshold``, ``unsealed``, ``foreign``, ``unsupported``;
    ``failed`` (the reuse leg or its transfer failed and the turn was computed anew).

    Cold, served by decode alone as no hand-over can carry it: ``multiple`` (n > 1), ``beam``, ``echo``,
    ``prompt_logprobs``, ``media``, ``batch`` (several prompts, or embeddings).
    """

    FULL = "full"
    CUT = "cut"
    LOCAL = "local"
    PLANNED = "planned"

    ANONYMOUS = "anonymous"
    FIRST = "first"
    LOST = "lost"
    BUSY = "busy"
    EXPIRED = "expired"
    RESTARTED = "restarted"
    UNHEALTHY = "unhealthy"
    STOCK = "stock"
    UNSUPPORTED = "unsupported"
    OFF = "off"

    MISMATCH = "mismatch"
    THRESHOLD = "threshold"
    UNSEALED = "unsealed"
    FOREIGN = "foreign"
    FAILED = "failed"

    MULTIPLE = "multiple"
    BEAM = "beam"
    ECHO = "echo"
    PROMPT_LOGPROBS = "prompt_logprobs"
    MEDIA = "media"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class EngineState:
    """What is known of an engine when a turn is planned. ``stock``: it has no plug-in of ours."""

    healthy: bool
    epoch: str | None
    stock: bool
    reuse: bool


@dataclass(frozen=True, slots=True)
class Plan:
    path: Path
    reason: Reason


def plan(
    frontier: Frontier | None,
    *,
    absent: Reason,
    holder: EngineState | None,
    prefill: EngineState,
    decode: EngineState,
    now: float,
    margin: float,
) -> Plan:
    """Choose the path of a turn that has a conversation.

    ``absent``: why there is no frontier, used when there is none. ``holder``: the decode engine that holds
    it, None if it is no longer configured. ``prefill``, ``decode``: the engines that are to serve the turn.
    ``margin``: seconds of lease that must be left.
    """
    if prefill.stock or decode.stock:
        return Plan(Path.COLD, Reason.STOCK)
    if not (prefill.reuse and decode.reuse):
        return Plan(Path.COLD, Reason.UNSUPPORTED)
    if frontier is None:
        return Plan(Path.COLD, absent)
    if holder is None or not holder.healthy:
        return Plan(Path.COLD, Reason.UNHEALTHY)
    if holder.epoch != frontier.epoch:
        return Plan(Path.COLD, Reason.RESTARTED)
    if frontier.deadline - margin <= now:
        return Plan(Path.COLD, Reason.EXPIRED)
    return Plan(Path.REUSE, Reason.PLANNED)


_OUTCOMES = {
    Match.NONE: Plan(Path.COLD, Reason.FAILED),
    Match.FULL: Plan(Path.REUSE, Reason.FULL),
    Match.CUT: Plan(Path.REUSE, Reason.CUT),
    Match.LOCAL: Plan(Path.REUSE, Reason.LOCAL),
    Match.MISMATCH: Plan(Path.COLD, Reason.MISMATCH),
    Match.THRESHOLD: Plan(Path.COLD, Reason.THRESHOLD),
    Match.UNSEALED: Plan(Path.COLD, Reason.UNSEALED),
    Match.FOREIGN: Plan(Path.COLD, Reason.FOREIGN),
    Match.FAILED: Plan(Path.COLD, Reason.FAILED),
    Match.UNSUPPORTED: Plan(Path.COLD, Reason.UNSUPPORTED),
}


def outcome(planned: Plan, match: Match) -> Plan:
    """What became of the plan once prefill has said what it did with the handle."""
    return _OUTCOMES[match] if planned.path is Path.REUSE else planned
