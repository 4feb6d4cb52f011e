"""Puts calls together whose log names no conversation: one goes on where another's messages end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from antiphon_server.traces.text import written
from antiphon_server.traces.trace import Call

_SEVERAL = 16
"""Conversations with the same beginning that are told apart by their answers."""


def chained(calls: Sequence[Call]) -> list[list[Call]]:
    """Conversations, each in the order of ``calls``, which is that of time. A call belongs to the
    conversation of its model whose last history it extends; else to one with which it shares an answer and
    all before it. Histories hold messages of one pool; a call without is a conversation of its own."""
    book = _Book()
    for call in calls:
        book.add(call)
    return book.chains


class _Book:
    """``_known``: by model and what a history begins with, the conversations that began so."""

    def __init__(self) -> None:
        self.chains: list[list[Call]] = []
        self._known: dict[tuple[str | None, int], list[int]] = {}

    def add(self, call: Call) -> None:
        beginnings = list(_beginnings(call))
        chain = self._find(call, beginnings)
        if chain is None:
            chain = len(self.chains)
            self.chains.append([])
        self.chains[chain].append(call)
        for begun, _ in beginnings:
            known = self._known.setdefault((call.model, begun), [])
            if chain not in known:
                known.append(chain)
                del known[:-_SEVERAL]

    def _find(self, call: Call, beginnings: Sequence[tuple[int, bool]]) -> int | None:
        for length in range(len(beginnings), 0, -1):
            begun, answered = beginnings[length - 1]
            fitting = [
                c for c in self._known.get((call.model, begun), ()) if self._fits(c, call, length, answered)
            ]
            if fitting:
                return next(
                    (c for c in reversed(fitting) if _is_answer(self.chains[c][-1], call)), fitting[-1]
                )
        return None

    def _fits(self, chain: int, call: Call, length: int, answered: bool) -> bool:
        """Whether a call may follow, of whose history so many messages are in that chain's."""
        last = self.chains[chain][-1].history or ()
        assert call.history is not None
        same = all(old is new for old, new in zip(last[:length], call.history[:length], strict=False))
        return same and (answered or len(last) == length < len(call.history))


def _beginnings(call: Call) -> Iterator[tuple[int, bool]]:
    """Of each message of a history: a key of what ends with it, and whether an answer is in that."""
    key, answered = 0, False
    for message in call.history or ():
        key = hash((key, id(message)))
        answered = answered or message.get("role") == "assistant"
        yield key, answered


def _is_answer(last: Call, call: Call) -> bool:
    """Whether the call's history goes on with the answer to the last one."""
    after = (call.history or ())[len(last.history or ()) :]
    return last.reply is not None and bool(after) and written(after[0]) == written(last.reply)
