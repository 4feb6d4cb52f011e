"""What the router says of a turn in its reply's header. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HEADER = "x-antiphon-reuse"
PATHS = ("append", "reuse", "cold")
UNKNOWN = "unknown"
_MOST_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Outcome:
    """``path``: one of ``PATHS``, or unknown where no router of ours answered. ``reason``: its word.

    Tokens, None where they are not told. ``matched``: of the prompt, not computed anew. ``prompt``: all of
    it. ``held``: what decode had of the conversation when the turn came.
    """

    path: str = UNKNOWN
    reason: str | None = None
    matched: int | None = None
    prompt: int | None = None
    held: int | None = None


def outcome_of(headers: Mapping[str, str]) -> Outcome:
    """Read a reply's headers, names in any case. What is malformed counts as not told."""
    said = next((value for name, value in headers.items() if name.lower() == HEADER), "")
    words: dict[str, str] = {}
    for part in said.split(";"):
        name, _, value = part.partition("=")
        words[name.strip()] = value.strip()
    path = words.get("path")
    return Outcome(
        path if path in PATHS else UNKNOWN,
        words.get("reason"),
        _tokens(words.get("matched")),
        _tokens(words.get("prompt")),
        _tokens(words.get("held")),
    )


def _tokens(word: str | None) -> int | None:
    if word is None or not (word.isascii() and word.isdecimal()) or len(word) > _MOST_DIGITS:
        return None
    return int(word)
