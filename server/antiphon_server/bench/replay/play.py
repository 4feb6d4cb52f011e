"""Conversations played against a router: each client waits for an answer before it asks for the next one."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import openai

import antiphon
import antiphon_openai
from antiphon_server.bench.arms import Arm
from antiphon_server.bench.engines import Engines
from antiphon_server.bench.replay.declines import declines, since
from antiphon_server.bench.replay.difference import Difference, first_difference
from antiphon_server.bench.replay.forecast import groups
from antiphon_server.bench.replay.history import History
from antiphon_server.bench.replay.pace import Pace
from antiphon_server.bench.replay.record import Served
from antiphon_server.bench.replay.ruler import Ruler
from antiphon_server.bench.replay.script import Script, Turn
from antiphon_server.bench.replay.watcher import Watcher
from antiphon_server.bench.replay.words import words
from antiphon_server.bench.timing import Timed, ask_async
from antiphon_server.counters import Counters

_FAILED: tuple[type[Exception], ...] = (openai.OpenAIError, json.JSONDecodeError, httpx.HTTPError, OSError)
try:  # openai from version 3 on
    import httpx2

    _FAILED = (*_FAILED, httpx2.HTTPError)
except ImportError:
    pass

GIVE_UP = 8
"""Conversations in a row, of all clients, that cannot connect: the server is gone."""

_WARM_UP_PROMPT, _WARM_UP_ANSWER = 200, 160


class GoneError(RuntimeError):
    """The server has ceased to answer."""


@dataclass(frozen=True, slots=True)
class Manner:
    """``clients``: conversations at once. ``start``: seconds over which the clients begin. ``timeout``:
    seconds of a turn. ``exact``: answers get their recorded length. ``tool_role``: see :class:`History`."""

    model: str
    ruler: Ruler
    pace: Pace
    clients: int = 1
    start: float = 0.0
    timeout: float = 600.0
    exact: bool = True
    tool_role: bool = False
    api_key: str = "none"


@dataclass
class Played:
    """``waits``: inter-token latencies by arm and class of turn. ``seconds``: that each arm was asked.
    ``prefill``, ``decode``: engines' counters of each arm. ``declined``: turns
    that its router did not append, by reason. ``stopped``: why it ended before its end."""

    turns: list[Served] = field(default_factory=list)
    waits: dict[tuple[str, str], array[float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    prefill: dict[str, Counters] = field(default_factory=dict)
    decode: dict[str, Counters] = field(default_factory=dict)
    declined: dict[str, Counter[str]] = field(default_factory=dict)
    compared: int = 0
    differences: list[Difference] = field(default_factory=list)
    stopped: str | None = None


class Player:
    """``engines``: those behind all arms, where they are known."""

    def __init__(
        self,
        manner: Manner,
        arms: Sequence[Arm],
        *,
        engines: Engines | None = None,
        watcher: Watcher | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._manner = manner
        self._arms = tuple(arms)
        self._engines = engines
        self._watcher = watcher or Watcher()
        self._clock = clock
        self._sleep = sleep
        self._run = uuid.uuid4().hex[:12]
        self._clients = {arm.name: self._client(arm) for arm in arms}
        self._http = httpx.Client(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
        self._gone = 0
        self._begun = clock()
        self.played = Played()

    async def play(self, scripts: Sequence[Script]) -> Played:
        """All conversations by each arm. With several arms a group of as many conversations as there are
        clients is played by one arm after the other, in rotating order: arms do not load each other, and what
        drifts on the machine meets all of them.
        """
        self._begun = self._clock()
        parts = groups(scripts, clients=self._manner.clients, arms=len(self._arms))
        for number, group in enumerate(parts):
            heard: dict[str, dict[str, list[Timed]]] = {}
            shift = number % len(self._arms)
            for arm in (*self._arms[shift:], *self._arms[:shift]):
                heard[arm.name] = await self._play(arm, group)
                if self.played.stopped:
                    return self.played
            if len(self._arms) > 1:
                self._compare(group, heard)
        return self.played

    async def close(self) -> None:
        """Its connections."""
        for client in self._clients.values():
            await client.close()
        self._http.close()

    async def warm_up(self) -> None:
        """Two short turns of each arm, which count for nothing: first forward passes, connections between the
        engines.

        Raises:
            GoneError: an arm does not answer.
        """
        text = words("warm up", "", self._manner.ruler.text(_WARM_UP_PROMPT))
        # The answer is long enough to be pulled by the second turn, whatever the block and the threshold.
        turns = [Turn(0.0, ({"role": "user", "content": text},), _WARM_UP_ANSWER) for _ in range(2)]
        for arm in self._arms:
            client = self._clients[arm.name]
            try:
                async with antiphon.conversation():
                    history = History(self._manner.ruler)
                    for turn in turns:
                        timed = await self._ask(client, f"{arm.name}-warm-up", history, turn)
                        history.end(timed.answer, timed.prompt_tokens)
            except _FAILED as error:
                raise GoneError(f"{arm.name} ({arm.router}) does not answer: {_told(error)}") from error

    async def _play(self, arm: Arm, group: Sequence[Script]) -> dict[str, list[Timed]]:
        """A group by one arm: its turns, by conversation, as long as they are to be compared."""
        self._watcher.begin(arm.name, len(group))
        counters, declined = await asyncio.to_thread(self._counted, arm)
        begun = self._clock()
        waiting = iter(group)
        heard: dict[str, list[Timed]] = {}
        clients = min(self._manner.clients, len(group))
        try:
            async with asyncio.TaskGroup() as tasks:
                for index in range(clients):
                    delay = self._manner.start * index / clients
                    tasks.create_task(self._serve(arm, waiting, heard, delay))
        except* GoneError as several:
            self.played.stopped = str(several.exceptions[0])
        played = self.played
        played.seconds[arm.name] = played.seconds.get(arm.name, 0.0) + self._clock() - begun
        counters_after, declined_after = await asyncio.to_thread(self._counted, arm)
        played.declined.setdefault(arm.name, Counter()).update(since(declined, declined_after))
        if counters is not None and counters_after is not None:
            for kept, old, new in zip((played.prefill, played.decode), counters, counters_after, strict=True):
                kept[arm.name] = kept.get(arm.name, Counters()) + (new - old)
        return heard

    async def _serve(
        self, arm: Arm, waiting: Iterator[Script], heard: dict[str, list[Timed]], delay: float
    ) -> None:
        """One client: takes a conversation after the other."""
        if delay:
            await self._sleep(delay)
        for script in waiting:
            turns = heard.setdefault(script.name, [])
            async with antiphon.conversation():
                async for timed in self._converse(arm, script):
                    if len(self._arms) > 1:
                        turns.append(timed)

    async def _converse(self, arm: Arm, script: Script) -> Any:
        """Its turns; ends at the first that fails, since no history goes on without an answer."""
        manner, client = self._manner, self._clients[arm.name]
        history = History(manner.ruler, tool_role=manner.tool_role)
        for index, turn in enumerate(script.turns, 1):
            gap = manner.pace.seconds(turn.gap)
            if gap:
                await self._sleep(gap)
            served = Served(script.name, index, arm.name, self._clock() - self._begun, gap)
            try:
                timed = await self._ask(client, arm.name, history, turn)
            except _FAILED as error:
                self._fail(replace(served, error=_told(error)), len(script.turns) - index, error)
                return
            self._gone = 0
            self._take(replace(served, **_figures(timed)), timed)
            history.end(timed.answer, timed.prompt_tokens)
            yield timed

    async def _ask(self, client: openai.AsyncOpenAI, salt: str, history: History, turn: Turn) -> Timed:
        limits: dict[str, Any] = {"max_tokens": turn.answer}
        if self._manner.exact:
            # Not ignore_eos: text does not show an end that was ignored, and so would not give the same KV.
            limits["extra_body"] = {"min_tokens": turn.answer}
        body = {
            "model": self._manner.model,
            "messages": history.begin(turn),
            "temperature": 0,
            "seed": 7,
            **({"tools": list(turn.tools)} if turn.tools else {}),
            **limits,
        }
        try:
            async with asyncio.timeout(self._manner.timeout):
                timed = await ask_async(client, body, salt=f"{self._run}-{salt}", clock=self._clock)
        except TimeoutError:
            raise TimeoutError(f"no whole answer within {self._manner.timeout:g} s") from None
        if timed.answer.finish is None:
            raise ConnectionError(f"the answer broke off after {len(timed.answer.ids)} tokens")
        return timed

    def _take(self, served: Served, timed: Timed) -> None:
        self.played.turns.append(served)
        self.played.waits.setdefault((served.arm, served.kind), array("d")).extend(timed.waits)
        self._watcher.turn(served)

    def _fail(self, served: Served, left: int, error: Exception) -> None:
        self.played.turns.append(served)
        self._watcher.turn(served)
        self._watcher.left_out(left)
        unreachable = isinstance(error, openai.APIConnectionError) and not isinstance(
            error, openai.APITimeoutError
        )
        self._gone = self._gone + 1 if unreachable else 0
        if self._gone >= GIVE_UP:
            raise GoneError(f"{served.arm} could not be reached {self._gone} times in a row: {served.error}")

    def _compare(self, group: Sequence[Script], heard: dict[str, dict[str, list[Timed]]]) -> None:
        first, *others = (arm.name for arm in self._arms)
        for script in group:
            for other in others:
                one, two = heard[first].get(script.name, []), heard[other].get(script.name, [])
                found, compared = first_difference(script.name, first, one, other, two)
                self.played.compared += compared
                if found is not None:
                    self.played.differences.append(found)

    def _counted(self, arm: Arm) -> tuple[tuple[Counters, Counters] | None, dict[str, int]]:
        """What the engines, and the router that an arm asks, have counted so far."""
        declined = declines(self._http, arm.router)
        if self._engines is None:
            return None, declined
        try:
            return (self._engines.prefill_counters(), self._engines.decode_counters()), declined
        except httpx.HTTPError:  # an engine is down: the turns say so
            return None, declined

    def _client(self, arm: Arm) -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(
            base_url=arm.api, api_key=self._manner.api_key, timeout=self._manner.timeout, max_retries=0
        )
        return antiphon_openai.wrap(client) if arm.stamps else client


def _figures(timed: Timed) -> dict[str, Any]:
    outcome, waits = timed.outcome, timed.waits
    spoken = outcome.path != "unknown"
    answered = max(len(timed.answer.ids), len(timed.times))
    return {
        "ttft": timed.ttft,
        "total": timed.total,
        "prompt": timed.prompt_tokens,
        "answer": answered,
        "path": outcome.path,
        "reason": outcome.reason,
        "matched": outcome.matched if spoken else timed.cached or 0,
        "held": outcome.held,
        "pace": sum(waits) / (answered - 1) if waits and answered > 1 else None,
        "longest": max(waits, default=None),
    }


def _told(error: Exception) -> str:
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:300]}" if said else type(error).__name__
