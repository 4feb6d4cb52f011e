"""Expected TTFT of a turn on each path, from what is known of its conversation and of the engines. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from antiphon_server.router.plan.extent import grown, size_of
from antiphon_server.router.plan.plan import Expected
from antiphon_server.router.plan.rates import Rates, Work
from antiphon_server.router.store.frontier import Frontier


@dataclass(frozen=True, slots=True)
class Growth:
    """A turn's prompt, in tokens, estimated. ``held``: decode has their KV. ``new``: the rest. ``known``: the
    request extends the last one; otherwise half of it is taken to be what is held."""

    held: int
    new: int
    known: bool

    @property
    def total(self) -> int:
        """Length of the prompt."""
        return self.held + self.new


def length(body: Mapping[str, bytes | msgspec.Raw], per_byte: float) -> int:
    """Tokens of a prompt of which only its bytes are known."""
    return max(1, round(size_of(body) * per_byte))


def growth(frontier: Frontier, body: Mapping[str, bytes | msgspec.Raw], per_byte: float) -> Growth:
    """Compare a request with the conversation's last turn. ``per_byte``: tokens, where that turn does not
    tell."""
    before = frontier.extent
    if before is not None and before.size and frontier.prompt_tokens:
        per_byte = frontier.prompt_tokens / before.size
    appended = grown(before, body) if before is not None else None
    if appended is None:
        total = length(body, per_byte)
        held = min(frontier.tokens, total) // 2
        return Growth(held, total - held, known=False)
    # The last answer is among what was appended, and decode holds its KV.
    answer = max(0, frontier.tokens - frontier.prompt_tokens) if frontier.prompt_tokens else 0
    return Growth(frontier.tokens, max(1, round(appended * per_byte) - answer), known=True)


def seen(turn: Growth, filled: int) -> int:
    """Tokens of what decode holds that a prefill engine can have in its own cache. ``filled``: of the
    conversation's last prompt there, 0 if unknown: later turns went straight to decode."""
    return min(turn.held, filled) if filled else turn.held


def cached(turn: Growth, rates: Rates, prefill: str, *, same: bool, filled: int) -> int:
    """Tokens of what decode holds that a prefill engine is expected to have in its own cache. ``same``: it
    served the last turn. ``filled``: see :func:`seen`."""
    return round(seen(turn, filled) * rates.local_share(prefill, same=same))


def forecast(
    turn: Growth,
    rates: Rates,
    *,
    prefill: str,
    decode: str,
    same_prefill: bool,
    streams: int,
    room: float,
    stays: bool = True,
    filled: int = 0,
) -> Expected:
    """Expected TTFT of the paths.

    ``prefill``, ``decode``: names of the engines. ``same_prefill``: that one served the last turn, so its own
    cache may hold much of it; ``filled``: see :func:`seen`. ``streams``: others that decode there. ``room``:
    seconds of decode's time that appends may take now. ``stays``: that engine holds what is held, so prefill
    hands over only what is new.
    """
    local = cached(turn, rates, prefill, same=same_prefill, filled=filled)
    ahead = rates.ahead(prefill)
    pulled = turn.new if stays else turn.total
    hand_over = rates.handed_over(decode, Work(0, turn.total, pulled=pulled, streams=streams))
    cold = rates.prefill(prefill, Work(turn.total - local, turn.total, ahead=ahead))
    reuse = rates.prefill(prefill, Work(turn.new, turn.total, pulled=turn.held - local, ahead=ahead))
    straight = Work(turn.new, turn.total, ahead=rates.ahead(decode), streams=streams)
    append = rates.append(decode, straight)
    if append is None:  # the same model on, most likely, the same hardware
        append = rates.prefill(prefill, straight)
    burden = rates.burden(decode, straight)
    if burden is None:
        burden = append
    return Expected(
        cold=_sum(cold, hand_over),
        reuse=_sum(reuse, hand_over),
        append=append,
        known=turn.known,
        burden=burden,
        room=not streams or burden is None or burden <= room,
    )


def _sum(leg: float | None, hand_over: float | None) -> float | None:
    """An unknown hand-over counts as nothing: that favours no path against cold."""
    return None if leg is None else leg + (hand_over or 0.0)
