"""Turns as the router serves them: its own state, books and decisions; only the legs are modelled.

What :class:`antiphon_server.router.turn.attempt.Attempt` does with requests and replies is done here with
lengths. Nothing fails here, so there is one attempt at each turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from antiphon_server.bench.simulate.engine import Engine, Lease
from antiphon_server.bench.simulate.legs import Begun, Filled, decode, prefill
from antiphon_server.bench.simulate.memory import Talk
from antiphon_server.bench.simulate.policy import Policy
from antiphon_server.bench.simulate.served import Served, served
from antiphon_server.bench.simulate.upstream import MODEL, ModelledUpstream
from antiphon_server.bench.simulate.workload import Turn
from antiphon_server.router.config.config import Exactly
from antiphon_server.router.fleet.worker import Role, Worker
from antiphon_server.router.gate.identity import Identity, Key
from antiphon_server.router.keep.conversations import Visit
from antiphon_server.router.plan.forecast import Growth
from antiphon_server.router.plan.plan import Plan, outcome
from antiphon_server.router.plan.reasons import Path, Reason
from antiphon_server.router.state import State
from antiphon_server.router.store.frontier import Frontier
from antiphon_server.router.turn.decision import Decision, Step, saw_prefill
from antiphon_server.router.turn.exchange import InFlight
from antiphon_server.router.turn.request import Forced

_UNBOUNDED = 1e9


class Router:
    """Our router over modelled engines, by their names (URLs). ``settings``: beside the policy's."""

    def __init__(
        self,
        prefills: Mapping[str, Engine],
        decodes: Mapping[str, Engine],
        policy: Policy,
        settings: Mapping[str, object],
    ) -> None:
        self._engines = {**prefills, **decodes}
        roles: dict[str, tuple[Role, Engine]] = {
            **{name.removeprefix("http://"): ("prefill", engine) for name, engine in prefills.items()},
            **{name.removeprefix("http://"): ("decode", engine) for name, engine in decodes.items()},
        }
        bounds = {} if policy.bounded else {"append_slowdown": _UNBOUNDED, "append_stall": _UNBOUNDED}
        own = {
            "probe_interval": 60.0,
            "pressure_interval": 5.0,
            "conversations": 100_000,
            "tenant_conversations": 100_000,
        }
        self.state = State(
            Exactly(
                prefill=[*prefills],
                decode=[*decodes],
                paths=[*policy.paths],
                **{**own, **bounds, **settings},  # type: ignore[arg-type]
            ),
            upstream=ModelledUpstream(roles),
            clock=asyncio.get_running_loop().time,
        )

    async def start(self) -> None:
        """Learn about the engines."""
        await self.state.start()

    async def stop(self) -> None:
        """Give up all that is kept."""
        await self.state.stop()

    @property
    def evictions(self) -> dict[str, int]:
        """Conversations given up, by cause."""
        return {
            sample.labels["cause"]: int(sample.value)
            for metric in self.state.metrics.evictions.collect()
            for sample in metric.samples
            if sample.name.endswith("_total") and sample.value
        }

    def budget(self) -> int:
        """Tokens of a decode engine that resting conversations may pin."""
        return self.state.rooms.budget(self.state.workers.decode[0]) or 0

    async def close(self, talk: Talk, tenant: str = "default") -> None:
        """The conversation is over."""
        await self.state.conversations.close(tenant, talk.name)

    async def serve(
        self, talk: Talk, index: int, turn: Turn, forced: Forced | None = None, tenant: str = "default"
    ) -> Served:
        """One turn."""
        key = Key(tenant, MODEL, "", talk.name)
        with self.state.conversations.visit(Identity(tenant, key)) as visit:
            return await _Attempt(self, visit, key, talk, index, turn, forced).run()


class _Attempt:
    """Mirrors the router's own, step by step."""

    def __init__(
        self,
        router: Router,
        visit: Visit,
        key: Key,
        talk: Talk,
        index: int,
        turn: Turn,
        forced: Forced | None,
    ) -> None:
        self._state = router.state
        self._engines = router._engines
        self._visit = visit
        self._key = key
        self._talk = talk
        self._index = index
        self._turn = turn
        self._forced = forced
        self._decision = Decision(self._state, key, forced)
        self._frontier: Frontier | None = None
        self._started = self._state.clock()

    async def run(self) -> Served:
        given = None
        if not self._state.settings.keeps and self._forced is None:
            given = Plan(Path.COLD, Reason.OFF)
        else:
            self._frontier = await self._state.conversations.take(self._visit)
        step = self._decision.step(self._frontier, self._growth(), given=given, company=self._visit.company)
        if step.plan.path is Path.COLD:
            self._release()
        if step.prefill is None:
            return await self._straight(step)
        return await self._through_prefill(step, step.prefill)

    def _growth(self) -> Growth | None:
        """As the router sees it: a request extends the last one where nothing before its end was changed."""
        frontier, turn = self._frontier, self._turn
        if frontier is None:
            return None
        if turn.keeps is not None and turn.keeps < frontier.prompt_tokens:
            held = min(frontier.tokens, turn.prompt) // 2
            return Growth(held, turn.prompt - held, known=False)
        return Growth(frontier.tokens, max(1, turn.prompt - frontier.tokens), known=True)

    async def _straight(self, step: Step) -> Served:
        rates, name, streams = self._state.rates, step.decode.name, step.decode.in_flight
        self._decision.charge(step)

        def begun(leg: Begun, seconds: float) -> None:
            own = rates.own(name, spell)
            computing.close()
            self._release()
            if own is not None:
                self._decision.saw_append(
                    step,
                    spell,
                    tokens=self._turn.prompt,
                    cached=leg.cached,
                    streams=streams,
                    seconds=min(own, seconds),
                )

        tokens, new = (step.turn.total, step.turn.new) if step.turn is not None else (0, 0)
        with ExitStack() as computing:
            spell = computing.enter_context(rates.computing(name, new))
            return await self._decode(step, None, tokens, begun)

    async def _through_prefill(self, step: Step, worker: Worker) -> Served:
        state, turn = self._state, self._turn
        state.placement.claim(worker, step.decode)
        filled = await self._filled(step, worker)
        self._decision.saw_local(step.turn, worker, tokens=turn.prompt, local=filled.local)
        alone, streams = not state.rates.ahead(step.decode.name), step.decode.in_flight

        def begun(leg: Begun, seconds: float) -> None:
            if alone:
                self._decision.saw_handed_over(step, tokens=turn.prompt, streams=streams, seconds=seconds)

        done = Step(outcome(step.plan, filled.match), worker, step.decode, step.turn)
        return await self._decode(done, filled, turn.prompt, begun)

    async def _filled(self, step: Step, worker: Worker) -> Filled:
        state, frontier, prompt = self._state, self._frontier, self._turn.prompt
        engine, source = self._engines[worker.name], None
        new = step.turn.new if step.turn is not None else 0
        if step.plan.path is Path.REUSE and frontier is not None:
            self._frontier = None  # burned
            source = self._engines[frontier.worker], frontier.lease
        else:
            new = self._decision.computed_cold(step.turn, worker, lambda: prompt)
        with InFlight(worker), state.rates.computing(worker.name, new) as spell:
            filled = await prefill(engine, self._talk, prompt, source)
            own = state.rates.own(worker.name, spell)
        if own is not None:
            matched = filled.local + filled.pulled
            saw_prefill(
                state, worker, spell, tokens=prompt, matched=matched, pulled=filled.pulled, seconds=own
            )
        if source is not None and frontier is not None and not filled.pulled:
            state.leases.release_frontier(frontier)
        return filled

    async def _decode(
        self, step: Step, filled: Filled | None, tokens: int, told: Callable[[Begun, float], None]
    ) -> Served:
        state, turn, clock = self._state, self._turn, self._state.clock
        conversations = state.conversations
        await conversations.make_room(
            self._visit, step.decode, tokens + conversations.answers.most(turn.answer_limit)
        )
        source = None
        if filled is not None and step.prefill is not None:
            source = self._engines[step.prefill.name], filled.lease
        began = clock()
        first: list[tuple[Begun, float]] = []

        def begun(leg: Begun) -> None:
            first.append((leg, clock()))
            told(leg, clock() - began)

        engine, epoch = self._engines[step.decode.name], step.decode.epoch
        with InFlight(step.decode):
            lease = await decode(
                engine, self._talk, turn.prompt, turn.answer, source, begun, text=filled is None
            )
            ended = clock()
            await self._record(step, lease, epoch)
        leg, at = first[0]
        return served(self._index, turn, step.plan, self._started, at, ended, leg, filled)

    async def _record(self, step: Step, lease: Lease, epoch: str | None) -> None:
        state, visit, decode = self._state, self._visit, step.decode
        if not state.settings.keeps or visit.closed or epoch is None:
            state.leases.release(decode, lease.name)
            return
        now = state.clock()
        frontier = Frontier(
            self._key,
            b"",
            lease.name,
            decode.name,
            epoch,
            lease.tokens,
            deadline=now + state.leases.granted(decode),
            idle_since=now,
            prompt_tokens=self._turn.prompt,
            began=self._started,
        )
        await state.conversations.record(visit, frontier)
        state.placement.remember(self._key, self._decision.served(step, self._turn.prompt))

    def _release(self) -> None:
        frontier, self._frontier = self._frontier, None
        if frontier is not None:
            self._state.leases.release_frontier(frontier)
