"""What the fake router could continue: the history that each conversation has come to. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from antiphon._outcome import Outcome
from antiphon.testing._history import History, history_of, setting_of, shared, text_of
from antiphon.testing._recorded import Recorded
from antiphon.testing._surfaces.reply import tokens

LEASE = 60.0
"""Seconds that a router keeps what nobody continues. Here it is only told: nothing expires."""

BLOCK = 16
"""Tokens. A prompt that differs within them, and in its first message, shares nothing of use."""

Key = tuple[str, str, str]
"""Conversation, model and cache salt: KV of one is never offered to another."""


@dataclass(slots=True)
class Held:
    """What a conversation holds. ``text``: None while nothing is there to continue. ``visits``: calls that
    are being answered. ``since``: when the text came, in seconds."""

    text: str | None = None
    visits: int = 0
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Visit:
    """A call that is being answered. ``text``: its whole prompt, as far as the router knows it. ``held``: its
    conversation's; None where it names none."""

    key: Key | None
    text: str
    held: Held | None
    reuse: Outcome


def header_of(outcome: Outcome) -> str:
    """``X-Antiphon-Reuse`` in the router's words. ``held`` is told where something was."""
    said = f"path={outcome.path}; matched={outcome.matched}; reason={outcome.reason}; prompt={outcome.prompt}"
    return said if outcome.held is None else f"{said}; held={outcome.held}"


class Books:
    """What a router and its engines hold, told as texts: prompt and answer of each conversation's last call.

    A call takes what its conversation holds and leaves its own in its place, as a real one does. Not for
    several threads at once.
    """

    def __init__(self) -> None:
        self._held: dict[Key, Held] = {}
        self._responses: dict[str, tuple[Key | None, str]] = {}

    def begin(self, call: Recorded) -> Visit:
        """The call has come."""
        text, key = text_of(setting_of(call), history_of(call)), _key(call)
        previous = self._responses.get(str(call.fields.get("previous_response_id")))
        if previous is not None:
            key, text = key or previous[0], previous[1] + text
        first = key not in self._held
        held = None if key is None else self._held.setdefault(key, Held())
        reuse = _cold("anonymous", text) if held is None else _taken(held, first, text)
        if previous is not None:
            reuse = Outcome("append", "stored", tokens(previous[1]), tokens(text))
        return Visit(key, text, held, reuse)

    def finish(self, visit: Visit, answer: History | None, response: Any, now: float) -> None:
        """It was answered. ``answer``: None where that failed. ``response``: the reply's id."""
        text = visit.text + text_of({}, answer or "")
        if answer is not None:
            self._responses[str(response)] = visit.key, text
        if visit.held is not None:  # no longer in the books where the conversation ended meanwhile
            visit.held.visits -= 1
            if answer is not None:
                visit.held.text, visit.held.since = text, now

    def close(self, conversation: str | None) -> bool:
        """End a conversation. False where it is not known."""
        ended = [key for key in self._held if key[0] == conversation]
        for key in ended:
            del self._held[key]
        return bool(ended)

    def describe(self, conversation: str | None, now: float) -> dict[str, Any] | None:
        """A conversation's state as the router tells it; None where it is not known."""
        known = {key: held for key, held in self._held.items() if key[0] == conversation}
        if not known:
            return None
        return {
            "id": conversation,
            "object": "antiphon.conversation",
            "turns_in_flight": sum(held.visits for held in known.values()),
            "kept": [
                {
                    "model": model,
                    "tokens": tokens(held.text),
                    "idle": round(now - held.since, 3),
                    "lease": LEASE,
                }
                for (_, model, _), held in known.items()
                if held.text is not None
            ],
        }


def _key(call: Recorded) -> Key | None:
    conversation = call.conversation
    if conversation is None:
        return None
    return conversation, str(call.fields.get("model") or ""), str(call.fields.get("cache_salt") or "")


def _taken(held: Held, first: bool, text: str) -> Outcome:
    """Take what is held. ``text``: the prompt that is to continue it."""
    before, held.text = held.text, None
    held.visits += 1
    if before is None:
        return _cold("first" if first else "busy" if held.visits > 1 else "lost", text)
    common = before[: shared(before, text)]
    if common == before:
        return Outcome("reuse", "full", tokens(before), tokens(text), tokens(before))
    if tokens(common) < BLOCK and "\n" not in common:
        return _cold("mismatch", text, tokens(before))
    return Outcome("reuse", "cut", tokens(common), tokens(text), tokens(before))


def _cold(reason: str, text: str, held: int | None = None) -> Outcome:
    return Outcome("cold", reason, 0, tokens(text), held)
