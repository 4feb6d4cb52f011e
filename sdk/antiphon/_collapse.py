"""When a turn reused so much less than there was that its history must have changed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon._outcome import Outcome

DIFFERS = frozenset({"cut", "local", "mismatch", "short"})
"""Reasons with which little is matched only if tokens differ: engines compared them."""

FIRST = "first"

MAY_DIFFER = frozenset({FIRST, "rewritten", "threshold"})
"""Reasons that also occur with an unchanged history. All others are none of the client's doing: the KV was
away, or it was not asked for."""

JUDGED = DIFFERS | MAY_DIFFER

LARGEST_BLOCK = 128
"""Tokens. Prefixes match in whole blocks; engines use 16 to 128."""

LEAST_LOST = 2 * LARGEST_BLOCK
"""Tokens that may be lost without a word: the last block is never full, and where an answer's tail tokenises
otherwise than it was sampled, the block before it does not match either."""

LEAST_SHARE = 0.1
"""Of what could have been reused: a smaller loss hardly shows in the time to the first token."""

_OPENING = 16
"""Tokens of the answer's opening in a template; they end a prompt and may look different in a history."""


@dataclass(frozen=True, slots=True)
class Collapse:
    """``matched`` tokens were reused of ``reusable`` ones. ``certain``: tokens differ, so it is the history.

    ``intact``: the last turn's prompt was matched to its end; None if its length is not known.
    """

    matched: int
    reusable: int
    certain: bool
    intact: bool | None


def collapse(now: Outcome, last: Outcome, answer: int = 0) -> Collapse | None:
    """Compare a turn with the one before it in the same conversation; None where all is well.

    ``answer``: tokens of the last turn's, 0 if unknown: with its prompt they are what decode held, where the
    router does not tell.
    """
    matched = now.matched
    if matched is None or now.reason not in JUDGED:
        return None
    if now.path == "append" and now.prompt is None:
        return None  # decode has not said what it matched
    if now.held is not None and last.prompt is not None and now.held < last.prompt:
        return None  # decode held another turn's KV: one that ran beside it, or another process's
    held = now.held
    if held is None and last.prompt is not None:
        held = last.prompt + answer
    if held is None:
        return None
    reusable = held if now.prompt is None else min(held, now.prompt)
    if reusable - matched <= max(LEAST_LOST, LEAST_SHARE * reusable):
        return None
    intact = None if last.prompt is None else matched >= last.prompt - LARGEST_BLOCK - _OPENING
    return Collapse(matched, reusable, now.reason in DIFFERS, intact)
