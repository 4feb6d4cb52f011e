"""A running fleet: what its engines and its router say, and what a few real turns show."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from antiphon_server.doctor.finding import Check, Examination, Fact, Finding, together
from antiphon_server.doctor.fleet import (
    asking,
    checks,
    conversation,
    exactness,
    round_trip,
    rules,
    stream_handle,
    words,
)
from antiphon_server.doctor.fleet.checks import FLEET
from antiphon_server.doctor.fleet.client import RUN, Patience, run_s
from antiphon_server.doctor.fleet.facts import EngineSeen, FleetFacts, RouterTrouble
from antiphon_server.doctor.fleet.foreign import cleaned
from antiphon_server.doctor.fleet.pair import LegError, Pair
from antiphon_server.doctor.fleet.target import FleetTarget
from antiphon_server.router.fleet.build import incompatible

MOST_PAIRS = 4
"""That are probed: each takes some seconds of the engines' time."""
PAIR_S = 60.0
"""What a pair's probes may take, about: slow engines get shorter prompts."""
TRIAL = 256
"""Tokens of a prompt by which an engine's speed is told, and the least of a probe's."""
PROMPTS = 10
"""A pair's probes compute about so many prompts of the length that is chosen."""

_PROBES = (
    checks.SIDE_CHANNEL,
    checks.LEG,
    checks.ROUND_TRIP,
    checks.BANDWIDTH,
    checks.STREAM_HANDLE,
    checks.EXACT,
    checks.REWRITTEN,
    checks.RELEASED,
)
_ROUTER_PROBES = (checks.EXACT_ROUTER, checks.ROUTER_REUSE)
_PROBED = frozenset(check.word for check in (*_PROBES, *_ROUTER_PROBES))


def examine(target: FleetTarget, *, clock: Callable[[], float] = time.monotonic) -> Examination:
    """Look at the fleet; with ``target.probe`` also send turns of some thousand tokens, under cache salts and
    conversation ids of their own, and release what they leave."""
    patience = Patience.of(target.timeout, clock)
    seen = asking.look(target, patience)
    looked = Examination(
        tuple(rules.findings(seen)),
        tuple(rules.facts(seen)),
        frozenset(check.word for check in FLEET if check.word not in _PROBED),
    )
    probed = list(_probes(seen, target, patience, clock)) if target.probe else []
    found = together([looked, *probed, _in_time(patience, run_s(target.timeout))])
    return cleaned(found, target.keys)


def _in_time(patience: Patience, whole: float) -> Examination:
    if patience.left() > 0:
        return Examination()
    what = f"the {whole:g} s for all of it were over before all was examined"
    remedy = f"mend what is slow, or raise --timeout: all of it takes {RUN} times as long at most"
    return Examination((checks.IN_TIME.finding("fleet", what, remedy),))


def _probes(
    seen: FleetFacts, target: FleetTarget, patience: Patience, clock: Callable[[], float]
) -> Iterator[Examination]:
    chosen = list(pairs(seen.engines))
    for prefill, decode in chosen[:MOST_PAIRS]:
        if patience.left() > 0:
            yield _probe_pair(prefill, decode, target, patience, clock)
    if len(chosen) > MOST_PAIRS:
        yield Examination(facts=(Fact("fleet", "pairs probed", f"{MOST_PAIRS} of {len(chosen)}"),))
    if seen.router is not None and not seen.router.troubles.keys() - {RouterTrouble.ADMIN_KEY}:
        yield _probe_router(seen, target, patience)


def pairs(engines: Iterable[EngineSeen]) -> Iterator[tuple[EngineSeen, EngineSeen]]:
    """As many as it takes to have each engine in one; those that cannot hand over are left out."""
    able = [engine for engine in engines if engine.asked.kind is None]
    prefill = [engine for engine in able if engine.asked.role == "prefill"]
    decode = [engine for engine in able if engine.asked.role == "decode"]
    for number in range(max(len(prefill), len(decode)) if prefill and decode else 0):
        p, d = prefill[number % len(prefill)], decode[number % len(decode)]
        if incompatible(p.asked.info, d.asked.info) is None:
            yield p, d


def length(seconds: float, context: int | None) -> int:
    """Tokens of a probe's prompts. ``seconds``: that the engine took for :data:`TRIAL` tokens; ``context``:
    the most that the model takes."""
    affordable = PAIR_S * TRIAL / PROMPTS / max(seconds, 1e-3)
    fitting = (context or round_trip.TOKENS * 4) // 4
    return int(min(max(affordable, TRIAL), round_trip.TOKENS, fitting))


def _probe_pair(
    prefill: EngineSeen,
    decode: EngineSeen,
    target: FleetTarget,
    patience: Patience,
    clock: Callable[[], float],
) -> Examination:
    model = decode.model or (decode.asked.info and decode.asked.info.model)
    if not model:
        return Examination(facts=(Fact(decode.name, "not probed", "it does not say which model it serves"),))
    info = decode.asked.info
    dtype = info.dtype if info is not None else None
    stock = info is None or prefill.asked.info is None
    found: list[Finding] = []
    facts: list[Fact] = []
    with Pair(
        prefill.asked.url, decode.asked.url, model, key=target.engine_key, stock=stock, patience=patience
    ) as pair:
        try:
            begun = clock()
            pair.plain(words.log(min(TRIAL, (decode.context or TRIAL * 2) // 2), pair.ids), words.fresh(), 1)
            tokens = length(clock() - begun, decode.context)
            if info is not None:
                found += stream_handle.findings(pair)
            trip = round_trip.travel(pair, tokens)
            found += round_trip.findings(pair, trip, dtype)
            facts += round_trip.facts(pair, trip)
            exact = exactness.compare(pair, trip.last, dtype, tokens // 4)
            found += exactness.findings(pair, exact)
            facts += exactness.facts(pair, exact)
        except LegError as error:
            found.append(_failed(error, pair.name))
        facts.append(Fact(pair.name, "tokens of the probes' prompts", str(pair.spent)))
    if stock:
        left = "until decoder_kv_blocks_ttl is over: a stock engine releases nothing early"
        facts.append(Fact(pair.name, "what the probes left stays", left))
    return Examination(tuple(found), tuple(facts), _words(_PROBES))


def _probe_router(seen: FleetFacts, target: FleetTarget, patience: Patience) -> Examination:
    router = seen.router
    if router is None or router.model is None:
        return Examination()
    infos = [engine.asked.info for engine in seen.engines if engine.asked.info is not None]
    dtypes = {info.dtype for info in infos}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    talk = conversation.Conversation(
        router.url, router.model, key=target.api_key, context=router.context, patience=patience
    )
    try:
        talked = talk.talk(dtype)
    except LegError as error:
        return Examination((_failed(error, f"router {router.url}"),), (), frozenset({checks.LEG.word}))
    return Examination(
        tuple(conversation.findings(router.url, talked)),
        tuple(conversation.facts(router.url, talked)),
        _words(_ROUTER_PROBES),
    )


def _failed(error: LegError, subject: str) -> Finding:
    remedy = "see the log of what answered so, and of the engines behind it"
    return checks.LEG.finding(subject, f"{error.url}: {error}", remedy)


def _words(made: Sequence[Check]) -> frozenset[str]:
    return frozenset(check.word for check in made)
