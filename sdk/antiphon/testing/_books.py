"""What the fake router could continue: the history that each conversation has come to. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from antiphon.testing._history import History, history_of, setting_of, shared, text_of
from antiphon.testing._recorded import Recorded
from antiphon.testing._reuse import Reuse
from antiphon.testing._surfaces.reply import tokens

LEASE = 60.0
"""Seconds that a router keeps what nobody continues. Here it is only told: nothing expires."""

BLOCK = 16
"""Tokens. A prompt that differs within them, and in its first message, shares nothing of use."""

Key = tuple[str, str, str]
"""Conversation, model and cache salt: KV of one is never offered to another."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A call that is being answered. ``text``: its whole prompt, as far as the router knows it."""

    key: Key | None
    text: str
    reuse: Reuse


@dataclass(slots=True)
class _Held:
    """``text``: None while nothing is there to continue. ``since``: when it came, in seconds."""

    text: str | None = None
    visits: int = 0
    since: float = 0.0


class Books:
    """What a router and its engines hold, told as texts: prompt and answer of each conversation's last call.

    A call takes what its conversation holds and leaves its own in its place, as a real one does. Not for
    several threads at once.
    """

    def __init__(self) -> None:
        self._held: dict[Key, _Held] = {}
        self._responses: dict[str, tuple[Key | None, str]] = {}

    def begin(self, call: Recorded) -> Visit:
        """The call has come."""
        text, key = text_of(setting_of(call), history_of(call)), _key(call)
        previous = self._responses.get(str(call.fields.get("previous_response_id")))
        if previous is not None:
            key, text = key or previous[0], previous[1] + text
        reuse = self._take(key, text)
        if previous is not None:
            reuse = Reuse("append", tokens(previous[1]), "stored", reuse.prompt)
        return Visit(key, text, reuse)

    def finish(self, visit: Visit, answer: History | None, response: Any, now: float) -> None:
        """It was answered. ``answer``: None where that failed. ``response``: the reply's id."""
        text = visit.text + text_of({}, answer or "")
        if answer is not None:
            self._responses[str(response)] = visit.key, text
        held = self._held.get(visit.key) if visit.key is not None else None
        if held is not None:  # else the conversation ended meanwhile
            held.visits -= 1
            if answer is not None:
                held.text, held.since = text, now

    def _take(self, key: Key | None, text: str) -> Reuse:
        prompt = tokens(text)
        if key is None:
            return Reuse("cold", 0, "anonymous", prompt)
        held = self._held.get(key)
        if held is None:
            self._held[key] = _Held(visits=1)
            return Reuse("cold", 0, "first", prompt)
        before, held.text = held.text, None
        held.visits += 1
        if before is None:
            return Reuse("cold", 0, "busy" if held.visits > 1 else "lost", prompt)
        common = before[: shared(before, text)]
        if common == before:
            return Reuse("reuse", tokens(before), "full", prompt, tokens(before))
        if tokens(common) < BLOCK and "\n" not in common:
            return Reuse("cold", 0, "mismatch", prompt, tokens(before))
        return Reuse("reuse", tokens(common), "cut", prompt, tokens(before))

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
