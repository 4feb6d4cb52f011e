"""Turns with reuse answer as full recomputation does, or they are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from antiphon_server.doctor.finding import Check, Fact, Finding
from antiphon_server.doctor.fleet import checks, words
from antiphon_server.doctor.fleet.answer import Answer, gap, tolerance
from antiphon_server.doctor.fleet.pair import Pair

TOKENS = 512
"""Before and after what is rewritten."""
ANSWER = 16
_CODES = (7316, 4829)


@dataclass(frozen=True, slots=True)
class Compared:
    """One turn: with reuse, and computed in full; ``allowed``: what rounding may make between the two."""

    reused: Answer
    computed: Answer
    allowed: float

    @property
    def gap(self) -> float:
        """Of log-probabilities; ``inf``: other tokens."""
        return gap(self.reused, self.computed)

    @property
    def wrong(self) -> bool:
        return self.gap > self.allowed


@dataclass(frozen=True, slots=True)
class Exactness:
    """``appended``: the history was extended; ``rewritten``: it was altered in the middle."""

    appended: Compared
    rewritten: Compared


def compare(pair: Pair, last: tuple[list[int], Answer], dtype: str | None, tokens: int = TOKENS) -> Exactness:
    """Ask again what was asked in a round trip's last turn, then a turn whose history was rewritten.

    Raises:
        LegError: a leg failed.
    """
    salt = words.fresh()
    before, after = words.log(tokens, pair.ids), words.log(tokens, pair.ids)
    codes = [pair.ids(words.code_said(code)) for code in _CODES]
    question = pair.ids(words.QUESTION)
    first = [*before, *codes[0], *after, *question]
    once, handle = pair.cold(first, salt, ANSWER)
    noise = gap(once, pair.plain(first, words.fresh(), ANSWER))
    allowed = tolerance(dtype, noise)
    rewritten = [*before, *codes[1], *after, *words.log(tokens // 8, pair.ids), *question]
    reused, _, _ = pair.turn(rewritten, salt, ANSWER, handle)
    computed = pair.plain(rewritten, words.fresh(), ANSWER)
    prompt, answer = last
    again = pair.plain(prompt, words.fresh(), len(answer.tokens))
    return Exactness(Compared(answer, again, allowed), Compared(reused, computed, allowed))


def findings(pair: Pair, found: Exactness) -> Iterator[Finding]:
    """Pure."""
    remedy = (
        "use kv_connector AntiphonConnector on both (antiphon engine): it checks whose KV it pulls"
        if pair.stock
        else "install one antiphon everywhere and restart both engines: their prefix caches may be wrong now"
    )
    for check, turn in ((checks.EXACT, found.appended), (checks.REWRITTEN, found.rewritten)):
        yield from judged(check, pair.name, turn, remedy)


def judged(check: Check, subject: str, turn: Compared, remedy: str) -> Iterator[Finding]:
    """A finding where the two answers are not the same."""
    if turn.wrong:
        apart = "other tokens" if turn.gap == float("inf") else f"log-probabilities differ by {turn.gap:.3g}"
        what = (
            f"{apart} (rounding makes {turn.allowed:.3g} at most): "
            f"{turn.reused.text!r} with reuse, {turn.computed.text!r} computed in full"
        )
        yield check.finding(subject, what, remedy)


def facts(pair: Pair, found: Exactness) -> Iterator[Fact]:
    """How close right answers are."""
    turns = {
        "next turn against full computation": found.appended,
        "rewritten history against full computation": found.rewritten,
    }
    for name, turn in turns.items():
        if not turn.wrong:
            yield Fact(pair.name, name, f"the same, log-probabilities within {turn.gap:.2g}")
