"""KV goes from prefill to decode and back, and is counted on its way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from antiphon_server.counters import Counters
from antiphon_server.doctor.finding import Fact, Finding
from antiphon_server.doctor.fleet import checks, words
from antiphon_server.doctor.fleet.answer import Answer
from antiphon_server.doctor.fleet.pair import Pair
from antiphon_server.doctor.machine.rules import size
from antiphon_server.protocol import Handle, Seal
from antiphon_server.router.turn.handles import apart, means_itself

TOKENS = 2048
"""Of each half of the conversation at most: several megabytes, and a second or two of compute."""
ANSWER = 32
NEXT = 48
PATIENCE_S = 15.0
"""For counters to say what happened: engines write them some steps later."""
POLL_S = 0.1
SLOW = 1e9
"""Bytes per second. TCP between two hosts stays below, EFA and NVLink are far above."""
ENOUGH = 64 * 1024**2
"""Bytes from which a transfer's bandwidth means something."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What one engine pulled: bytes, in ``seconds`` of transfer as NIXL counts them, of ``tokens``."""

    received: float
    seconds: float
    tokens: float

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second; None where no time was counted."""
        return self.received / self.seconds if self.seconds > 0 else None

    def __str__(self) -> str:
        fast = f", {size(self.bandwidth)}/s" if self.bandwidth is not None else ""
        return f"{self.tokens:.0f} tokens, {size(self.received)}{fast}"


@dataclass(frozen=True, slots=True)
class Trip:
    """``there``: from prefill to decode; ``back``: from decode to prefill. ``seal``: what prefill says of the
    way back, None from a stock one. ``hosts``: what handles name, by the engine that gave them. ``last``: the
    last turn's prompt and its answer, with what was pulled."""

    there: Moved
    back: Moved
    seal: Seal | None
    hosts: Mapping[str, str]
    last: tuple[list[int], Answer]


def travel(
    pair: Pair,
    tokens: int = TOKENS,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Trip:
    """A conversation of three turns. The second is decode's alone and long, so that prefill, even with a
    prefix cache, has much to pull in the third.

    Raises:
        LegError: a leg failed.
    """
    salt = words.fresh()
    watch = _Watch(pair, clock, sleep)
    prompt = words.log(tokens, pair.ids)
    first, handle, there = watch.moved(pair.decode, lambda: pair.cold(prompt, salt, ANSWER))
    prompt = [*prompt, *first.ids, *words.log(tokens, pair.ids)]
    second, handle = pair.straight(prompt, salt, ANSWER)
    prompt = [*prompt, *second.ids, *words.log(NEXT, pair.ids)]
    third, _, seal, back = watch.returned(lambda: pair.turn(prompt, salt, ANSWER, handle))
    return Trip(there, back, seal, dict(pair.hosts), (prompt, third))


class _Watch:
    def __init__(self, pair: Pair, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._pair = pair
        self._clock = clock
        self._sleep = sleep

    def moved(self, url: str, do: Callable[[], tuple[Answer, Handle]]) -> tuple[Answer, Handle, Moved]:
        before = self._pair.counters(url)
        answer, handle = do()
        return answer, handle, self._since(url, before)

    def returned(
        self, do: Callable[[], tuple[Answer, Handle, Seal | None]]
    ) -> tuple[Answer, Handle, Seal | None, Moved]:
        before = self._pair.counters(self._pair.prefill)
        answer, handle, seal = do()
        return answer, handle, seal, self._since(self._pair.prefill, before)

    def _since(self, url: str, before: Counters) -> Moved:
        """Once the engine has counted what it pulled; when time is up, what it has counted."""
        end = self._clock() + PATIENCE_S
        while True:
            now = self._pair.counters(url) - before
            if (now.received and now.pulled) or self._clock() > end:
                return Moved(now.received, now.receiving, now.pulled)
            self._sleep(POLL_S)


def findings(pair: Pair, trip: Trip, dtype: str | None) -> Iterator[Finding]:
    """What the trip shows. Pure."""
    for subject, what, moved in (
        (f"decode {pair.decode}", "pulled nothing from prefill", trip.there),
        (f"prefill {pair.prefill}", "pulled nothing from decode", trip.back),
    ):
        if not moved.received:
            said = f" (it says: {trip.seal.match})" if trip.seal is not None and moved is trip.back else ""
            remedy = "see its log (NIXL); both need bidirectional_kv_xfer and each other's side channel"
            yield checks.ROUND_TRIP.finding(subject, what + said, remedy)
        elif dtype != "float32" and moved.received >= ENOUGH and (moved.bandwidth or SLOW) < SLOW:
            what = f"pulls at {size(moved.bandwidth or 0)}/s"
            remedy = (
                'between EFA hosts set backends to ["LIBFABRIC"] on both; within a host some paths are slow'
            )
            yield checks.BANDWIDTH.finding(subject, what, remedy)
    names = [urlsplit(url).hostname or "" for url in (pair.prefill, pair.decode)]
    for url, host in trip.hosts.items():
        if means_itself(host) and apart(*names):
            yield checks.SIDE_CHANNEL.finding(
                url,
                f"its handles name {host}",
                "set VLLM_NIXL_SIDE_CHANNEL_HOST of each engine to an address that the others reach",
            )


def facts(pair: Pair, trip: Trip) -> Iterator[Fact]:
    """Its figures. Other traffic at the time is in them."""
    yield Fact(pair.name, "prefill to decode", str(trip.there))
    yield Fact(pair.name, "decode to prefill", str(trip.back))
    if trip.seal is not None:
        share = f"{trip.seal.matched} of {len(trip.last[0])} prompt tokens matched, {trip.seal.pulled} pulled"
        yield Fact(pair.name, "next turn", share)
