"""What an engine has still to compute for those who came first. Pure: times are passed in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Spell:
    """A leg's time at an engine. ``tokens``: to compute. ``waited``: others came before it. ``overtaken``:
    one that came later ended first, as may be while this one pulls KV. ``over``: it has ended."""

    tokens: int
    waited: bool
    overtaken: bool = False
    over: bool = False


class Backlog:
    """The legs that one engine computes, first come, first served."""

    def __init__(self) -> None:
        self._spells: list[Spell] = []
        self._since = 0.0

    def __bool__(self) -> bool:
        return bool(self._spells)

    def add(self, tokens: int, now: float) -> Spell:
        """A leg begins."""
        if not self._spells:
            self._since = now
        spell = Spell(tokens, waited=bool(self._spells))
        self._spells.append(spell)
        return spell

    def remove(self, spell: Spell, now: float) -> None:
        """The leg is over: the next one has the engine from now on."""
        spell.over = True
        place = self._spells.index(spell)
        for before in self._spells[:place]:
            before.overtaken = True
        if not place:
            self._since = now
        del self._spells[place]

    def own(self, spell: Spell, now: float) -> float | None:
        """Seconds that the engine has been at this leg and at no other; None if that cannot be told."""
        alone = bool(self._spells) and self._spells[0] is spell and not spell.overtaken
        return now - self._since if alone else None

    def left(self, rate: float | None, now: float) -> int:
        """Tokens to compute still, at so many a second; None: unknown, so that all of them count."""
        if not self._spells:
            return 0
        first = self._spells[0].tokens
        done = min(first, round(max(0.0, now - self._since) * rate)) if rate else 0
        return sum(spell.tokens for spell in self._spells) - done
