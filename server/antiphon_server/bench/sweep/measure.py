"""The sweep itself: the same conversations through each arm in turn, so that a machine's drift hits all."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openai import OpenAI

import antiphon
from antiphon_server.bench.arms import Arm
from antiphon_server.bench.conditions import conditions
from antiphon_server.bench.site import Site
from antiphon_server.bench.sweep.plan import Plan
from antiphon_server.bench.sweep.record import Cache, Place, Sweep, Turn
from antiphon_server.bench.sweep.texts import SYSTEM, Texts
from antiphon_server.bench.timing import Timed, ask
from antiphon_server.counters import Counters

WARM_UP = 0
"""Repeats count from 1: turns of this one are dropped."""


class Watcher:
    """What is going on. This one is silent."""

    def note(self, text: str) -> None:
        """Something that is worth a line."""

    def begin(self, turns: int) -> None:
        """So many turns are coming."""

    def turn(self, turn: Turn) -> None:
        """One is over."""


def measure(
    site: Site,
    arms: Sequence[Arm],
    plan: Plan,
    watcher: Watcher,
    *,
    name: str,
    load: float = 0.0,
    notes: Sequence[str] = (),
    sleep: Callable[[float], None] = time.sleep,
) -> Sweep:
    """Measure all of ``plan`` in all ``arms``.

    Raises:
        ValueError: the model's context is too short for it.
        openai.APIError, httpx.HTTPError, TimeoutError: a turn failed.
    """
    with contextlib.ExitStack() as stack:
        texts = stack.enter_context(contextlib.closing(Texts(site)))
        plan.check(texts.context())
        clients = {arm.name: stack.enter_context(arm.client()) for arm in arms}
        pool = stack.enter_context(ThreadPoolExecutor(plan.clients))
        states, forgets = _states(site)
        if states == (Cache.WARM,):
            notes = (
                *notes,
                "prefill's cache could not be emptied: start prefill with VLLM_SERVER_DEV_MODE=1",
            )
        bench = _Bench(site, plan, texts, clients, pool, forgets, watcher)
        known = conditions(site, load=load, prefill_cache=" and ".join(states))
        turns: list[Turn] = []
        watcher.begin(len(states) * len(arms) * plan.turns_of_an_arm)
        for state in states:
            bench.warm_up(arms, state)
            for repeat, length, group, order in _runs(plan, arms):
                for arm in order:
                    turns += bench.run(arm, state, length, repeat, group)
                    sleep(plan.settle)
    return Sweep(name, plan, tuple(arm.name for arm in arms), known, tuple(turns), tuple(notes))


def _states(site: Site) -> tuple[tuple[Cache, ...], bool]:
    """What this site's prefill cache can be when a later turn comes, and whether we can empty it."""
    if site.engines.prefill_caching() is False:
        return (Cache.EMPTY,), False
    site.engines.settle()
    return ((Cache.EMPTY, Cache.WARM), True) if site.engines.forget_prefill() else ((Cache.WARM,), False)


def _runs(plan: Plan, arms: Sequence[Arm]) -> Iterator[tuple[int, int, range, Sequence[Arm]]]:
    """Repeat, length, conversations, and the arms in the order of this run: each is first as often, and has
    now one, now the other before it."""
    for repeat in range(1, plan.repeat + 1):
        step = 1 if repeat % 2 else -1
        for place, length in enumerate(plan.lengths):
            for number, group in enumerate(plan.groups()):
                first = repeat + place + number
                yield repeat, length, group, [arms[(first + step * i) % len(arms)] for i in range(len(arms))]


class _Bench:
    def __init__(
        self,
        site: Site,
        plan: Plan,
        texts: Texts,
        clients: dict[str, OpenAI],
        pool: ThreadPoolExecutor,
        forgets: bool,
        watcher: Watcher,
    ) -> None:
        self._site = site
        self._plan = plan
        self._texts = texts
        self._clients = clients
        self._pool = pool
        self._forgets = forgets
        self._watcher = watcher

    def warm_up(self, arms: Sequence[Arm], state: Cache) -> None:
        """First forward passes, connections between the engines, and what routers learn of this state."""
        self._watcher.note(f"warming up, prefill's cache {state}")
        lengths = self._plan.lengths
        for length in dict.fromkeys((lengths[0], lengths[len(lengths) // 2])):
            for arm in arms:
                self.run(arm, state, length, WARM_UP, range(self._plan.clients))

    def run(self, arm: Arm, state: Cache, length: int, repeat: int, group: range) -> list[Turn]:
        """Conversations that are open together, turn by turn, to their end."""
        turns: list[Turn] = []
        engines = self._site.engines
        with contextlib.ExitStack() as ends:
            talks = [
                _Talk(self._clients[arm.name], self._site.model, number, self._texts.prefix(number, length))
                for number in group
            ]
            if arm.stamps:
                for talk in talks:
                    ends.callback(talk.open())
            for turn in range(1, self._plan.turns + 1):
                # Where one client asks, each turn's counters are its own.
                for some in [[talk] for talk in talks] if self._plan.clients == 1 else [talks]:
                    if state is Cache.EMPTY and self._forgets:
                        engines.forget_prefill()
                    for talk, timed, prefill, decode in self._round(some, turn):
                        place = Place(state, length, repeat, talk.number, turn)
                        turns.append(Turn(arm.name, place, timed, prefill, decode))
                        if repeat != WARM_UP:
                            self._watcher.turn(turns[-1])
        engines.settle()
        return turns

    def _round(self, talks: Sequence[_Talk], turn: int) -> Iterator[tuple[_Talk, Timed, Counters, Counters]]:
        """One turn of each conversation."""
        new, answer, engines = self._plan.new, self._plan.answer, self._site.engines
        messages = [self._texts.message(talk.number, turn, new) for talk in talks]
        prefill, decode = engines.prefill_counters(), engines.decode_counters()
        asked = [
            self._pool.submit(talk.ask, message, answer)
            for talk, message in zip(talks, messages, strict=True)
        ]
        timed = [future.result() for future in asked]
        prefill, decode = engines.prefill_counters() - prefill, engines.decode_counters() - decode
        for talk, one in zip(talks, timed, strict=True):
            yield talk, one, prefill / len(talks), decode / len(talks)


class _Talk:
    """One conversation. Its turns may run on any thread, one after the other."""

    def __init__(self, client: OpenAI, model: str, number: int, prefix: str) -> None:
        self.number = number
        self._client = client
        self._model = model
        self._prefix = prefix
        self._salt = uuid.uuid4().hex
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
        self._context = contextvars.copy_context()

    def open(self) -> Callable[[], object]:
        """Stamp its calls from now on; what is returned ends that."""
        conversation = antiphon.conversation()
        self._context.run(conversation.__enter__)
        return lambda: self._context.run(conversation.__exit__, None, None, None)

    def ask(self, message: str, answer: int) -> Timed:
        """One turn; the answer becomes part of the history."""
        text = f"{self._prefix}\n{message}" if len(self._messages) == 1 else message
        self._messages.append({"role": "user", "content": text})
        timed = self._context.run(ask, self._client, self._body(answer), salt=self._salt)
        self._messages.append({"role": "assistant", "content": timed.answer.text})
        # Log-probabilities would be most of the record.
        return dataclasses.replace(timed, answer=dataclasses.replace(timed.answer, logprobs=()))

    def _body(self, answer: int) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": self._messages,
            "temperature": 0,
            "seed": 7,
            "max_tokens": answer,
            # An answer of the wanted length that holds no end within it: those do not come back as text.
            "extra_body": {"min_tokens": answer},
        }
