"""The decisions of one attempt at a turn, and what the router learns from how it went. Without I/O: the same
code serves a client and runs on a counted clock (``antiphon bench simulate``)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from antiphon_server.router.errors import UnavailableError
from antiphon_server.router.fleet.placement import Place
from antiphon_server.router.fleet.workers import Worker
from antiphon_server.router.gate.identity import Key
from antiphon_server.router.plan.backlog import Spell
from antiphon_server.router.plan.forecast import Growth, cached, forecast, seen
from antiphon_server.router.plan.plan import Plan, plan
from antiphon_server.router.plan.rates import Work
from antiphon_server.router.plan.reasons import Path, Reason
from antiphon_server.router.plan.trials import Trial
from antiphon_server.router.state import State
from antiphon_server.router.store.frontier import Frontier
from antiphon_server.router.turn.request import Forced


@dataclass(frozen=True, slots=True)
class Step:
    """A decided attempt. ``prefill``: None where the turn goes straight to decode. ``turn``: what is known of
    the prompt's length, None on a first turn. ``burden``: seconds that an append is expected to take from
    other streams. ``stays``: ``decode`` holds what the conversation has. ``trial``: of an append that is
    tried."""

    plan: Plan
    prefill: Worker | None
    decode: Worker
    turn: Growth | None
    burden: float | None = None
    stays: bool = False
    trial: Trial | None = None


class Decision:
    """``key``: of the conversation, None where the turn names none. ``place``: where it was served last."""

    def __init__(self, state: State, key: Key | None, forced: Forced | None = None) -> None:
        self.place = state.placement.of(key)
        self._state = state
        self._key = key
        self._forced = forced

    def step(
        self,
        frontier: Frontier | None,
        turn: Growth | None,
        *,
        given: Plan | None = None,
        alone: bool = False,
        holder: Worker | None = None,
        company: bool = False,
        failed: Collection[str] = (),
    ) -> Step:
        """Place the turn and choose its path.

        ``turn``: of the prompt against the frontier. ``given``: the plan of a turn that cannot have a
        frontier; ``alone``: and that goes to decode only. ``holder``: the only engine that can serve it.
        ``company``: other turns of the conversation are in flight. ``failed``: engines that failed in this
        turn.

        Raises:
            UnavailableError: no decode engine is up.
        """
        state, forced = self._state, self._forced
        preferred = frontier.worker if frontier is not None else self.place.decode
        decode = forced.decode if forced is not None else holder
        if decode is None:
            decode = _preferring(failed, lambda avoid: state.placement.decode(self._key, preferred, avoid))
        if decode is None:
            raise UnavailableError("no decode engine is up: try again soon")
        if alone:
            assert given is not None
            return Step(given, None, decode, None)
        prefill = forced.prefill if forced is not None else self._prefill(decode, failed)
        if given is not None:
            chosen = given if prefill is not None else Plan(Path.COLD, Reason.UNHEALTHY)
            return Step(chosen, prefill, decode, None)
        return self._planned(frontier, turn, prefill, decode, company)

    def _planned(
        self,
        frontier: Frontier | None,
        turn: Growth | None,
        prefill: Worker | None,
        decode: Worker,
        company: bool,
    ) -> Step:
        state, forced, rates = self._state, self._forced, self._state.rates
        keeper = state.workers.find(frontier.worker) if frontier is not None else None
        now = state.clock()
        expected = None
        if turn is not None and prefill is not None:
            budget = state.append_budget(decode.name)
            expected = forecast(
                turn,
                rates,
                prefill=prefill.name,
                decode=decode.name,
                same_prefill=self.place.prefill == prefill.name,
                streams=decode.in_flight,
                room=budget.room(now),
                stays=keeper is decode,
                filled=self._filled(prefill),
            )
        paths = forced.paths if forced is not None else state.settings.allowed
        trials = rates.trials(decode.name)
        trial = expected.trial(paths) if expected is not None and forced is None else None
        # One that waits for others would tell nothing of its own time.
        tries = trial is not None and trials.due(trial) and not rates.ahead(decode.name)
        known = self.place != Place()
        chosen = plan(
            frontier,
            absent=Reason.BUSY if company else Reason.LOST if known else Reason.FIRST,
            holder=keeper.state if keeper is not None else None,
            prefill=prefill.state if prefill is not None else None,
            decode=decode.state,
            stays=keeper is decode,
            now=now,
            margin=state.settings.lease_margin,
            expected=expected,
            paths=paths,
            tries=tries,
            parted=keeper is not decode and self._parted(prefill, keeper, now),
        )
        if chosen.declined is Reason.LONG and trial is not None:
            trials.declined(trial)
        if chosen.declined is not None and forced is None:
            state.metrics.append_declined.labels(chosen.declined.value).inc()
        if chosen.path is Path.APPEND:
            burden = expected.burden if expected is not None else None
            tried = trial if chosen.reason is Reason.TRIAL else None
            return Step(chosen, None, decode, turn, burden, trial=tried)
        return Step(chosen, prefill, decode, turn, stays=keeper is decode)

    def _parted(self, prefill: Worker | None, keeper: Worker | None, now: float) -> bool:
        """Prefill was chosen to go with this turn's decode engine. It may not go with the last one's."""
        if prefill is None or keeper is None:
            return False
        return not self._state.placement.pairs.allowed(prefill, keeper, now)

    def _prefill(self, decode: Worker, failed: Collection[str]) -> Worker | None:
        key, preferred, placement = self._key, self.place.prefill, self._state.placement
        return _preferring(failed, lambda avoid: placement.prefill(key, decode, preferred, avoid))

    def charge(self, step: Step) -> None:
        """Take what an append costs others from the engine's budget, and what a trial costs. One that has the
        engine for itself costs only those who come meanwhile, so it leaves no debt."""
        if step.trial is not None:
            self._state.rates.trials(step.decode.name).begin(step.trial)
        if step.plan.path is not Path.APPEND or step.burden is None:
            return
        budget, now = self._state.append_budget(step.decode.name), self._state.clock()
        budget.spend(step.burden if step.decode.in_flight else min(step.burden, budget.room(now)), now)

    def computed_cold(self, turn: Growth | None, worker: Worker, length: Callable[[], int]) -> int:
        """Tokens that a cold prefill leg is expected to compute. ``length``: of the prompt, for a first
        turn."""
        rates = self._state.rates
        if turn is None:
            return round(length() * (1.0 - rates.local_share(worker.name, same=None)))
        same = self.place.prefill == worker.name
        return turn.total - cached(turn, rates, worker.name, same=same, filled=self._filled(worker))

    def saw_local(self, turn: Growth | None, worker: Worker, *, tokens: int, local: int) -> None:
        """Prefill had ``local`` of a prompt's ``tokens`` in its own cache."""
        if turn is None and tokens:
            self._state.rates.saw_local(worker.name, local / tokens, same=None)
        elif turn is not None and turn.held:
            same = self.place.prefill == worker.name
            share = local / seen(turn, self._filled(worker))
            self._state.rates.saw_local(worker.name, min(1.0, share), same=same)

    def _filled(self, prefill: Worker) -> int:
        return self.place.filled if self.place.prefill == prefill.name else 0

    def served(self, step: Step, tokens: int) -> Place:
        """Where a turn with a prompt of ``tokens`` tokens was, for the next one."""
        if step.prefill is None:
            return Place(self.place.prefill, step.decode.name, self.place.filled)
        return Place(step.prefill.name, step.decode.name, tokens)

    def saw_handed_over(self, step: Step, *, tokens: int, streams: int, seconds: float) -> None:
        """Decode answered ``seconds`` after its leg began; nothing was before it, ``streams`` were beside
        it."""
        held = step.turn.held if step.turn is not None and step.stays else 0
        work = Work(0, tokens, pulled=max(0, tokens - held), streams=streams)
        self._state.rates.saw_handed_over(step.decode.name, work, seconds)

    def saw_append(
        self, step: Step, spell: Spell, *, tokens: int, cached: int, streams: int, seconds: float
    ) -> None:
        """Decode had ``cached`` of a prompt's ``tokens``, and answered after ``seconds`` of its own."""
        work = Work(max(0, tokens - cached), tokens, streams=streams)
        self._state.rates.saw_append(step.decode.name, work, seconds, waited=spell.waited)
        if step.trial is not None:
            self._state.rates.trials(step.decode.name).end(step.trial, seconds)


def saw_prefill(
    state: State, worker: Worker, spell: Spell, *, tokens: int, matched: int, pulled: int, seconds: float
) -> None:
    """Prefill took ``seconds`` of its own for a prompt of which it did not compute ``matched``."""
    work = Work(max(0, tokens - matched), tokens, pulled=pulled)
    state.rates.saw_prefill(worker.name, work, seconds, waited=spell.waited)


def _preferring(failed: Collection[str], choose: Callable[[Collection[str]], Worker | None]) -> Worker | None:
    """A worker that has not failed in this turn; one that has only where there is no other."""
    found = choose(failed)
    return choose(()) if found is None and failed else found
