"""What a program's conversations have reused, as far as replies told."""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from antiphon._divergence import Divergence
from antiphon._outcome import PATHS, UNKNOWN, Outcome

MOST_CONVERSATIONS = 1024
"""Beyond it the one that spoke least recently is forgotten."""

MOST_KEPT_BYTES = 32 * 2**20
"""Of requests and replies, kept for comparison with the next turn's; beyond it the oldest go."""

MOST_TURN_BYTES = 4 * 2**20
"""A turn with more is not kept: comparing it would hold the program up."""

MOST_TTFTS = 64
MOST_TURN_IDS = 16
"""Of a conversation's last turns, so that none is counted twice."""

MOST_WARNED = 10
"""Conversations that may be warned of for one cause."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a conversation has reused in this process. Zeros and None until a reply has told.

    ``turns``: model calls that succeeded. ``paths``: of them, by ``append``, ``reuse``, ``cold`` and
    ``unknown``, where no router of ours answered. ``prompt_tokens``, ``matched_tokens``: sums of what is
    known. ``reused``: share of the prompts that was not computed anew, over the turns that tell both.
    ``last_*``: of the last turn, as in the router's header: tokens ``matched`` of the ``prompt``, tokens that
    decode ``held``. ``ttfts``: seconds to the head of the last streamed replies, the newest last.
    ``divergence``: where the history ceased to repeat, the last time that it did.
    """

    turns: int = 0
    paths: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys((*PATHS, UNKNOWN), 0))
    prompt_tokens: int = 0
    matched_tokens: int = 0
    reused: float | None = None
    last_path: str | None = None
    last_reason: str | None = None
    last_matched: int | None = None
    last_prompt: int | None = None
    last_held: int | None = None
    ttfts: tuple[float, ...] = ()
    divergence: Divergence | None = None

    @property
    def last_ttft(self) -> float | None:
        """Seconds; None if no reply was streamed."""
        return self.ttfts[-1] if self.ttfts else None

    @property
    def mean_ttft(self) -> float | None:
        """Seconds, over ``ttfts``; None if no reply was streamed."""
        return sum(self.ttfts) / len(self.ttfts) if self.ttfts else None


@dataclass(frozen=True, slots=True)
class Kept:
    """The bodies of a turn, for comparison with the next one's."""

    request: bytes
    reply: bytes | None = None

    @property
    def size(self) -> int:
        return len(self.request) + len(self.reply or b"")


@dataclass(frozen=True, slots=True)
class Last:
    """A conversation's last turn. ``kept``: None if its bodies are not at hand."""

    outcome: Outcome
    kept: Kept | None


@dataclass(slots=True)
class _Book:
    """``prompt``, ``matched``: tokens of the turns that tell both. ``warned``: its user has been told."""

    statistics: Statistics = field(default_factory=Statistics)
    prompt: int = 0
    matched: int = 0
    last: Outcome | None = None
    turn_ids: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_TURN_IDS))
    warned: bool = False

    def add(self, outcome: Outcome, ttft: float | None) -> None:
        before = self.statistics
        if outcome.prompt is not None and outcome.matched is not None:
            self.prompt += outcome.prompt
            self.matched += outcome.matched
        self.last = outcome
        self.statistics = Statistics(
            turns=before.turns + 1,
            paths={**before.paths, outcome.path: before.paths[outcome.path] + 1},
            prompt_tokens=before.prompt_tokens + (outcome.prompt or 0),
            matched_tokens=before.matched_tokens + (outcome.matched or 0),
            reused=self.matched / self.prompt if self.prompt else None,
            last_path=outcome.path,
            last_reason=outcome.reason,
            last_matched=outcome.matched,
            last_prompt=outcome.prompt,
            last_held=outcome.held,
            ttfts=before.ttfts if ttft is None else (*before.ttfts, ttft)[-MOST_TTFTS:],
            divergence=before.divergence,
        )


class Registry:
    """The books of all conversations, by id. Thread-safe, and bounded in every way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._books: OrderedDict[str, _Book] = OrderedDict()
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._kept_bytes = 0
        self._warned: Counter[tuple[str | None, str | None]] = Counter()

    def forked(self) -> None:
        """Start anew in a forked process: a thread that is not there may hold the lock."""
        self.__init__()  # type: ignore[misc]

    def statistics(self, conversation: str) -> Statistics:
        """Those of a conversation; empty ones if none of its turns was observed, or it is forgotten."""
        with self._lock:
            book = self._books.get(conversation)
            return book.statistics if book else Statistics()

    def add(
        self, conversation: str, turn: str | None, outcome: Outcome, ttft: float | None, kept: Kept | None
    ) -> Last | None:
        """Count a turn. Returns the one before it; None if there is none, or this one was counted already."""
        with self._lock:
            book = self._books.setdefault(conversation, _Book())
            self._books.move_to_end(conversation)
            if turn is not None:
                if turn in book.turn_ids:
                    return None
                book.turn_ids.append(turn)
            last = None if book.last is None else Last(book.last, self._kept.get(conversation))
            book.add(outcome, ttft)
            self._keep(conversation, kept)
            while len(self._books) > MOST_CONVERSATIONS:
                forgotten, _ = self._books.popitem(last=False)
                self._keep(forgotten, None)
            return last

    def diverged(self, conversation: str, divergence: Divergence | None) -> int:
        """Note why little was reused; None: not known. Returns how many conversations have been warned of
        that cause, this one included; 0 if it is to be passed over in silence."""
        cause = (divergence.kind, divergence.role) if divergence else (None, None)
        with self._lock:
            book = self._books.get(conversation)
            if book is None:
                return 0
            if divergence is not None:
                book.statistics = replace(book.statistics, divergence=divergence)
            if book.warned or self._warned[cause] >= MOST_WARNED:
                return 0
            book.warned = True
            self._warned[cause] += 1
            return self._warned[cause]

    def _keep(self, conversation: str, kept: Kept | None) -> None:
        gone = self._kept.pop(conversation, None)
        self._kept_bytes -= gone.size if gone else 0
        if kept is not None and kept.size <= MOST_TURN_BYTES:
            self._kept[conversation] = kept
            self._kept_bytes += kept.size
        while self._kept_bytes > MOST_KEPT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.size


registry = Registry()
"""Of this process."""

getattr(os, "register_at_fork", lambda **_: None)(after_in_child=registry.forked)  # not on Windows
