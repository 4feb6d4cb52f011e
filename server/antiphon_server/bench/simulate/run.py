"""A simulation: conversations on a fleet under one policy, on counted time."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from antiphon_server.bench.simulate.engine import Engine
from antiphon_server.bench.simulate.fleet import Fleet
from antiphon_server.bench.simulate.loop import VirtualLoop
from antiphon_server.bench.simulate.memory import Talk
from antiphon_server.bench.simulate.policy import POLICIES, Policy
from antiphon_server.bench.simulate.proxy import Proxy
from antiphon_server.bench.simulate.rates import RateModel
from antiphon_server.bench.simulate.router import Router
from antiphon_server.bench.simulate.served import Ledger
from antiphon_server.bench.simulate.warm import calibrate
from antiphon_server.bench.simulate.workload import Lane
from antiphon_server.quantiles import Spread, spread


class SimulationError(ValueError):
    """It cannot be simulated as asked for."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one policy came to. Seconds and tokens. ``ttft``: by a turn's index: all, 1, 2-5, 6+ (None: no
    such turn). ``pace``: between two tokens of an answer. ``prefill_leg``: at prefill; ``pull``: from decode.

    ``paths``, ``reasons``: turns. ``prompt_tokens`` = ``computed`` + ``local`` + ``pulled``. ``moved``:
    bytes, both ways. ``prefill_busy``, ``decode_busy``: share of time with anything to do;
    ``decode_prompts``: of that, what computing prompts took. ``pinned_most``, ``pinned_mean``: share of a
    decode engine's KV that leases hold, ``budget``: that they may; 0: no budget. ``waits``: legs that waited
    for memory or for a place among the sequences. ``samples``: TTFT of every turn, in the order in which they
    ended.
    """

    policy: str
    turns: int
    conversations: int
    seconds: float
    ttft: dict[str, Spread | None]
    pace: Spread | None
    prefill_leg: Spread | None
    pull: Spread | None
    paths: dict[str, int]
    reasons: dict[str, int]
    prompt_tokens: int
    answer_tokens: int
    computed: int
    local: int
    pulled: int
    handed: int
    moved: int
    prefill_busy: float
    decode_busy: float
    decode_prompts: float
    pinned_most: float
    pinned_mean: float
    budget: float
    evictions: dict[str, int]
    waits: int
    samples: Sequence[float]

    def share(self, path: str) -> float:
        """Of the turns, that took a path."""
        return self.paths.get(path, 0) / self.turns if self.turns else 0.0

    @property
    def rate(self) -> float:
        """Turns a second."""
        return self.turns / self.seconds if self.seconds else 0.0


def simulate(
    lanes: Sequence[Lane],
    model: RateModel,
    fleet: Fleet,
    policy: Policy | str = "auto",
    *,
    seed: int = 1,
    settings: Mapping[str, object] | None = None,
    served: Callable[[], object] = lambda: None,
) -> Result:
    """Serve all conversations once. ``served``: called after each turn.

    ``settings``: the router's, by name, where they differ from its defaults, e.g. ``keep_share``. The same
    arguments give the same result.

    Raises:
        SimulationError: a prompt does not fit into an engine, or there is nothing to simulate.
    """
    chosen = POLICIES[policy] if isinstance(policy, str) else policy
    _check(lanes, fleet)
    state, level = random.getstate(), logging.root.manager.disable
    random.seed(seed)
    # Frontiers, futures and callbacks come and go in their millions, and hardly any is part of a cycle.
    collects = gc.isenabled()
    gc.disable()
    logging.disable(logging.WARNING)
    loop = VirtualLoop()
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(_run(lanes, model, fleet, chosen, settings or {}, served))
    finally:
        logging.disable(level)
        random.setstate(state)
        if collects:
            gc.enable()
        gc.collect()


def _check(lanes: Sequence[Lane], fleet: Fleet) -> None:
    if not any(c.turns for lane in lanes for c in lane.conversations):
        raise SimulationError("no conversation has a turn: there is nothing to simulate")
    room = min(fleet.prefill_tokens, fleet.decode_tokens)
    for lane in lanes:
        for conversation in lane.conversations:
            most = max((turn.prompt + turn.answer for turn in conversation.turns), default=0)
            if most > room:
                raise SimulationError(
                    f"conversation {conversation.name} comes to {most} tokens, but an engine holds {room}: "
                    "raise --kv, or leave it out"
                )


async def _run(
    lanes: Sequence[Lane],
    model: RateModel,
    fleet: Fleet,
    policy: Policy,
    settings: Mapping[str, object],
    served: Callable[[], object],
) -> Result:
    prefills = {
        name: Engine(
            name,
            model,
            fleet,
            tokens=fleet.prefill_tokens,
            caches=fleet.prefill_cache,
            sequences=fleet.sequences,
        )
        for name in (f"http://p{number}:8000" for number in range(fleet.prefills))
    }
    decodes = {
        name: Engine(name, model, fleet, tokens=fleet.decode_tokens, caches=True, sequences=fleet.sequences)
        for name in (f"http://d{number}:8000" for number in range(fleet.decodes))
    }
    router: Proxy | Router
    if policy.proxy:
        router = Proxy([*prefills.values()], [*decodes.values()], reuses=policy.paths != ("cold",))
    else:
        router = Router(prefills, decodes, policy, settings)
    await router.start()
    if isinstance(router, Router) and router.state.settings.keeps and router.state.settings.calibrate:
        await calibrate(router)
    loop, ledger = asyncio.get_running_loop(), Ledger()
    began = loop.time()
    before = _Meters.of(prefills, decodes)
    tasks = [asyncio.create_task(_play(router, lane, ledger, began, served)) for lane in lanes]
    await asyncio.gather(*tasks)
    seconds = loop.time() - began
    result = _result(
        policy, lanes, ledger, seconds, model, fleet, router, before, _Meters.of(prefills, decodes)
    )
    await router.stop()
    return result


async def _play(
    router: Proxy | Router, lane: Lane, ledger: Ledger, began: float, served: Callable[[], object]
) -> None:
    loop = asyncio.get_running_loop()
    talks: dict[str, Talk] = {}
    for conversation, index in lane.turns():
        talk = talks.get(conversation.name)
        if talk is None:
            talk = talks[conversation.name] = Talk(conversation.name, conversation.shared, conversation.group)
            await asyncio.sleep(max(0.0, began + conversation.start - loop.time()))
        turn = conversation.turns[index]
        if index and turn.gap:
            await asyncio.sleep(turn.gap)
        talk.turn = index
        if turn.keeps is not None:
            talk.cut(turn.keeps)
        ledger.add(await router.serve(talk, index, turn))
        served()


@dataclass(frozen=True, slots=True)
class _Meters:
    """Sums over the engines of a role."""

    prefill_busy: float
    decode_busy: float
    decode_prompts: float
    pinned_seconds: float
    pinned_most: int
    waits: int

    @classmethod
    def of(cls, prefills: Mapping[str, Engine], decodes: Mapping[str, Engine]) -> _Meters:
        return cls(
            sum(engine.steps.busy for engine in prefills.values()),
            sum(engine.steps.busy for engine in decodes.values()),
            sum(engine.steps.computing for engine in decodes.values()),
            sum(engine.pinned_until_now() for engine in decodes.values()),
            max(engine.most_pinned for engine in decodes.values()),
            sum(engine.waited for engine in (*prefills.values(), *decodes.values())),
        )


def _result(
    policy: Policy,
    lanes: Sequence[Lane],
    ledger: Ledger,
    seconds: float,
    model: RateModel,
    fleet: Fleet,
    router: Proxy | Router,
    before: _Meters,
    after: _Meters,
) -> Result:
    tokens = ledger.tokens
    decode_seconds = max(seconds, 1e-9) * fleet.decodes
    busy = after.decode_busy - before.decode_busy
    return Result(
        policy=policy.name,
        turns=len(ledger.ttft),
        conversations=sum(len(lane.conversations) for lane in lanes),
        seconds=seconds,
        ttft=ledger.by_group(),
        pace=spread(ledger.pace),
        prefill_leg=spread(ledger.prefill),
        pull=spread(ledger.pulling),
        paths=dict(ledger.paths.most_common()),
        reasons=dict(ledger.reasons.most_common()),
        prompt_tokens=tokens["prompt"],
        answer_tokens=tokens["answer"],
        computed=tokens["computed"],
        local=tokens["local"],
        pulled=tokens["pulled"],
        handed=tokens["handed"],
        moved=(tokens["pulled"] + tokens["handed"]) * model.bytes_per_token,
        prefill_busy=(after.prefill_busy - before.prefill_busy) / (max(seconds, 1e-9) * fleet.prefills),
        decode_busy=busy / decode_seconds,
        decode_prompts=(after.decode_prompts - before.decode_prompts) / max(busy, 1e-9),
        pinned_most=after.pinned_most / fleet.decode_tokens,
        pinned_mean=(after.pinned_seconds - before.pinned_seconds) / decode_seconds / fleet.decode_tokens,
        budget=router.budget() / fleet.decode_tokens,
        evictions=dict(router.evictions),
        waits=after.waits - before.waits,
        samples=ledger.ttft,
    )
