"""Any interleaving of turns, clients that leave, failing engines and passing time: no wrong token, no lease,
counter or task left over.

``make fuzz`` runs longer and draws other seeds each time; see :data:`STEPS`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from antiphon_server.router.gate.identity import identify
from antiphon_server.router.store.memory_store import MemoryStore
from antiphon_server.simulator import Fault, Settings, SimulatedEngine
from antiphon_server.simulator.tokens import END_TOKEN
from doubles.client import Call
from doubles.fleet import Fleet, Router
from doubles.histories import (
    CHANGES,
    EXTRAS,
    PEOPLE,
    QUESTIONS,
    SECRETS,
    Past,
    Who,
    begun_anew,
    oracle,
    regenerated,
    streamed,
    verbatim,
)

STEPS = int(os.environ.get("ANTIPHON_FUZZ_STEPS", "0"))
"""0: the fixed examples of ``make test``; else about so many steps of random ones."""
EXAMPLE = 60
"""Steps of one example."""

AFTERMATH = 25.0
"""Seconds for which trouble that is over may still be felt: the router has to find out."""
FOR_EVER = 2000.0
"""Seconds in which every turn comes to an end, whatever happens."""

SEEN: Counter[str] = Counter()
"""What the examples came across: steps, and turns by path and reason."""


@dataclass
class Turn:
    """One turn and all that its answer is judged by. ``wrong``: the status with which engines refuse it.
    ``troubled``: something went wrong while it ran, or shortly before."""

    who: Who
    router: Router
    body: dict[str, Any]
    call: Call
    began: float
    wrong: int | None
    expected: list[int]
    troubled: bool
    final: bool
    judged: bool = False

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))


CONFIGS = st.fixed_dictionaries(
    {
        "prefills": st.integers(1, 2),
        "decodes": st.integers(1, 2),
        "routers": st.sampled_from([1, 1, 2]),
        "paths": st.sampled_from(
            [
                *[["reuse"]] * 4,
                *[["append"]] * 2,
                *[["reuse", "append"], ["cold", "reuse", "append"]] * 2,
                ["cold"],
            ]
        ),
        "calibrate": st.sampled_from([False] * 5 + [True]),
        "capacity": st.sampled_from([44, 96, 96, 400]),
        "p_caches": st.booleans(),
        "d_caches": st.sampled_from([True, True, False]),
        "threshold": st.sampled_from([0, 0, 24]),
        "policy": st.sampled_from(["fail", "recompute"]),
        "rates": st.sampled_from([(0.0, 0.0, 0.0), (3000.0, 300.0, 6000.0)]),
        "drift": st.booleans(),
        "portions": st.booleans(),
        "keep_share": st.sampled_from([0.35, 0.5, 0.9]),
        "conversations": st.sampled_from([100, 100, 2]),
        "tenant_conversations": st.sampled_from([100, 100, 1]),
        "max_turns": st.sampled_from([0, 0, 0, 2]),
        "queue": st.sampled_from([1, 512]),
        "tenant_salt": st.sampled_from(["auto", "always"]),
        "pull_grace": st.sampled_from([0.05, 5.0]),
        "keep": st.sampled_from([480.0, 40.0]),
        "stock": st.sampled_from([""] * 14 + ["prefill", "decode"]),
        "calm": st.booleans(),
    }
)
PAUSES = st.sampled_from([0.0, 0.0, 0.001, 0.003, 0.01, 0.03, 0.2])
FAULTS = st.builds(
    lambda kind, path, times, code, chunks, worked: Fault(
        kind=kind, path=path, times=times, code=code, chunks=chunks, worked=worked, seconds=0.02
    ),
    st.sampled_from(["status", "drop", "cut", "delay", "slow", "stall"]),
    st.sampled_from(["/v1/", "/v1/", "/v1/", "/antiphon/leases", "/antiphon/info", "/health", "/metrics"]),
    st.integers(1, 4),
    st.sampled_from([500, 503, 429]),
    st.integers(0, 4),
    st.booleans(),
)


class Machine(RuleBasedStateMachine):
    """Clients, engines and time, drawn at random."""

    def __init__(self) -> None:
        super().__init__()
        self._outer = sys.exc_info()[1]
        self.fleet: Fleet | None = None
        self.turns: list[Turn] = []
        self.pasts: dict[Who, Past] = {}
        self.closed: dict[tuple[str, str], float] = {}
        self.last_trouble = -AFTERMATH

    # What is drawn

    @initialize(config=CONFIGS, seed=st.integers(0, 9))
    def build(self, config: dict[str, Any], seed: int) -> None:
        self.config = config
        prefill_rate, decode_rate, transfer_rate = config["rates"]
        common: dict[str, Any] = {
            "block_size": 8,
            "answer_tokens": 6,
            "drift": config["drift"],
            "prefill_rate": prefill_rate,
            "decode_rate": decode_rate,
            "transfer_rate": transfer_rate,
            "kv_load_failure_policy": config["policy"],
            "longest_lease": 90.0,
        }
        prefill = Settings(
            role="prefill",
            threshold=config["threshold"],
            prefix_caching=config["p_caches"],
            capacity=max(64, config["capacity"]),
            antiphon=config["stock"] != "prefill",
            **common,
        )
        decode = Settings(
            role="decode",
            prefix_caching=config["d_caches"],
            capacity=config["capacity"],
            antiphon=config["stock"] != "decode",
            **common,
        )
        self.fleet = Fleet(
            [prefill] * config["prefills"],
            [decode] * config["decodes"],
            portions=config["portions"],
            seed=seed,
        )
        self.store = MemoryStore(config["conversations"], clock=self.fleet.loop.time)
        for _ in range(config["routers"]):
            self._start_router()

    @rule(
        who=st.sampled_from(PEOPLE),
        change=st.sampled_from(CHANGES),
        question=st.sampled_from(QUESTIONS),
        extra=st.sampled_from(EXTRAS),
        stream=st.booleans(),
        surface=st.sampled_from(["chat", "chat", "completions"]),
        which=st.integers(0, 1),
        final=st.sampled_from([False] * 7 + [True]),
    )
    def ask(
        self,
        who: Who,
        change: Any,
        question: str,
        extra: dict[str, Any],
        stream: bool,
        surface: str,
        which: int,
        final: bool,
    ) -> None:
        """A turn, to its end."""
        self._wait(self._begin(who, change, question, extra, stream, surface, which, final))

    @rule(who=st.sampled_from(PEOPLE[:6]), question=st.sampled_from(QUESTIONS), stream=st.booleans())
    def go_on(self, who: Who, question: str, stream: bool) -> None:
        """What most turns are: the same again and a little more, to its end."""
        self._wait(self._begin(who, verbatim, question, {}, stream, "chat", 0, False))

    @rule(
        who=st.sampled_from(PEOPLE[:4]),
        stream=st.booleans(),
        which=st.integers(0, 1),
        times=st.integers(2, 3),
    )
    def go_on_and_on(self, who: Who, stream: bool, which: int, times: int) -> None:
        """Several turns one after the other."""
        for _ in range(times):
            self._wait(self._begin(who, verbatim, QUESTIONS[1], {}, stream, "chat", which, False))

    @rule(
        who=st.sampled_from(PEOPLE),
        change=st.sampled_from(CHANGES),
        extra=st.sampled_from(EXTRAS[:4]),
        stream=st.booleans(),
        surface=st.sampled_from(["chat", "chat", "completions"]),
        which=st.integers(0, 1),
        final=st.sampled_from([False] * 7 + [True]),
        pause=PAUSES,
    )
    def begin(
        self,
        who: Who,
        change: Any,
        extra: dict[str, Any],
        stream: bool,
        surface: str,
        which: int,
        final: bool,
        pause: float,
    ) -> None:
        """A turn that goes on while other things happen."""
        self._begin(who, change, QUESTIONS[0], extra, stream, surface, which, final)
        self._let(pause)

    @rule(
        who=st.sampled_from(PEOPLE[:4]), streams=st.lists(st.booleans(), min_size=2, max_size=4), pause=PAUSES
    )
    def crowd(self, who: Who, streams: list[bool], pause: float) -> None:
        """Several turns of one conversation at once."""
        for which, stream in enumerate(streams):
            self._begin(who, verbatim, QUESTIONS[which % 3], {}, stream, "chat", which, False)
        self._let(pause)

    @rule(ticks=st.integers(1, 40))
    def tick(self, ticks: int) -> None:
        """So many rounds of the event loop."""
        for _ in range(ticks):
            self._fleet.pass_time(0)

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.1, 1.0, 1.0, 4.0, 4.0, 16.0, 31.0, 65.0]))
    def wait(self, seconds: float) -> None:
        """Up to when leases have to be renewed, or have ended."""
        self._let(seconds)

    @rule(index=st.integers(0, 7), pause=PAUSES)
    def leave(self, index: int, pause: float) -> None:
        """A client closes its connection."""
        running = self._running()
        if running:
            running[index % len(running)].call.leave()
            self._let(pause)

    @rule(
        who=st.sampled_from(PEOPLE[:6]),
        ticks=st.integers(0, 60),
        stream=st.booleans(),
        change=st.sampled_from(CHANGES),
    )
    def begin_and_leave(self, who: Who, ticks: int, stream: bool, change: Any) -> None:
        """A client that leaves in whichever phase its turn is by then."""
        turn = self._begin(who, change, QUESTIONS[2], {}, stream, "chat", 0, False)
        self.tick(ticks)
        turn.call.leave()
        self.tick(3)

    @rule(index=st.integers(0, 7), reads=st.booleans(), pause=PAUSES)
    def read(self, index: int, reads: bool, pause: float) -> None:
        """A client stops to read its stream, or goes on."""
        running = self._running()
        if running:
            running[index % len(running)].call.read(reads)
            self._trouble()  # what is not read holds its engine's KV, which others may have to wait for
            self._let(pause)

    @precondition(lambda self: not self.config["calm"])
    @rule(index=st.integers(0, 3), fault=FAULTS)
    def fault(self, index: int, fault: Fault) -> None:
        """An engine will fail some of its requests."""
        engine = self._engine(index)
        if id(engine) in self._fleet.up:
            engine.faults.add(fault)
            self._trouble()

    @precondition(lambda self: not self.config["calm"])
    @rule(times=st.integers(1, 3), ticks=st.integers(0, 20))
    def fail_transfers(self, times: int, ticks: int) -> None:
        """KV will not arrive."""
        self._fleet.cluster.failing += times
        self._trouble()
        self.tick(ticks)

    @precondition(lambda self: not self.config["calm"])
    @rule()
    def mend(self) -> None:
        """All is well again."""
        self._mend()

    @precondition(lambda self: not self.config["calm"])
    @rule(
        index=st.integers(0, 3),
        kill=st.booleans(),
        pause=st.sampled_from([0.0, 0.01, 1.0, 7.0]),
    )
    def strike(self, index: int, kill: bool, pause: float) -> None:
        """An engine's process dies; another is in its place at once, or later."""
        engine = self._engine(index)
        if id(engine) in self._fleet.up:
            self._trouble()
            (self._fleet.kill if kill else self._fleet.restart)(engine)
            self._let(pause)

    @precondition(lambda self: not self.config["calm"])
    @rule(index=st.integers(0, 3))
    def lapse(self, index: int) -> None:
        """An engine answers no renewal until its leases have ended."""
        engine = self._engine(index)
        if id(engine) in self._fleet.up:
            self._trouble()
            engine.faults.add(Fault(kind="status", path="/antiphon/leases", times=100))
            self._let(66.0)
            engine.faults.clear()
            self._trouble()

    @precondition(lambda self: not self.config["calm"])
    @rule(index=st.integers(0, 3), which=st.integers(0, 1), how=st.sampled_from(["drain", "undrain", "move"]))
    def change_fleet(self, index: int, which: int, how: str) -> None:
        """An engine is drained, or no more, or leaves the fleet of a router, or comes back."""
        engine, workers = self._engine(index), self._router(which).state.workers
        role: Any = engine.settings.role
        url = self._fleet.urls[id(engine)]
        there = any(listed.url == url for listed in workers.list())
        self._trouble()
        if how == "move":
            self._fleet.run((workers.remove if there else workers.add)(role, url))
        elif there:
            (workers.drain if how == "drain" else workers.undrain)(role, url)

    @precondition(lambda self: not self.config["calm"])
    @rule(which=st.integers(0, 1))
    def replace_router(self, which: int) -> None:
        """A router is stopped as its turns have ended, and another takes its place."""
        for turn in self._running():
            turn.call.read(True)
        self._trouble()
        self._fleet.stop_router(self._router(which))
        self._start_router()
        self.closed.clear()  # as its memory is gone, too

    @rule(who=st.sampled_from(PEOPLE[:7]), which=st.integers(0, 1))
    def close(self, who: Who, which: int) -> None:
        """A client ends its conversation."""
        self._close(who, self._router(which))

    @rule(
        which=st.integers(0, 1),
        path=st.sampled_from(["/metrics", "/ready", "/health", "/v1/conversations/a"]),
    )
    def look(self, which: int, path: str) -> None:
        """Somebody asks how things are."""
        call = self._fleet.call(self._router(which), "GET", path)
        self._fleet.run(asyncio.wait_for(call.task, FOR_EVER))
        assert call.status in ({200, 503} if path == "/ready" else {200, 404} if "conv" in path else {200})

    # What holds

    @invariant()
    def holds(self) -> None:
        if self.fleet is None:
            return
        SEEN["steps"] += 1
        self._sound()
        for turn in self.turns:
            if turn.call.task.done() and not turn.judged:
                self._judge(turn)
        self.turns = [turn for turn in self.turns if not turn.judged]
        if not self.turns and all(router.idle for router in self.fleet.routers):
            self._at_rest()

    def teardown(self) -> None:
        fleet = self.fleet
        if fleet is None:
            return
        try:
            if sys.exc_info()[1] is self._outer:
                self._end(fleet)
        finally:
            fleet.dispose()

    def _end(self, fleet: Fleet) -> None:
        """Everything gets well and comes to its end: nothing may be left."""
        self._mend()
        for turn in self.turns:
            turn.call.read(True)
            self._wait(turn)
        fleet.pass_time(2 * self.config["pull_grace"])
        for who in PEOPLE:
            if who.conversation is not None:
                self._close(who, fleet.routers[0])
        patience = 40
        while patience and (fleet.unaccounted() or not all(router.idle for router in fleet.routers)):
            patience -= 1
            fleet.pass_time(0.5)
        assert not fleet.held(), fleet.held()
        assert not fleet.unaccounted(), fleet.unaccounted()
        if any(router.leftovers() for router in fleet.routers):
            fleet.pass_time(91.0)  # what was given up for lost counts until its lease must be over
        for router in fleet.routers:
            assert not router.leftovers(), router.leftovers()
        for engine in fleet.engines:
            assert (engine.running, engine.waiting) == (0, 0)
        fleet.close()
        self._sound()

    def _at_rest(self) -> None:
        fleet = self._fleet
        held = fleet.held()
        unaccounted = fleet.unaccounted()
        assert not unaccounted, unaccounted
        rests = Counter[str]()
        for frontier in held:
            rests[frontier.worker] += (
                -(-frontier.tokens // 8) * 8 if len(fleet.routers) == 1 else frontier.tokens
            )
        for worker in fleet.routers[0].state.workers.decode:
            budget = fleet.routers[0].state.rooms.budget(worker)
            assert budget is None or rests[worker.name] <= budget, (rests, budget)
        for frontier in held:
            closed = self.closed.get((frontier.key.tenant, frontier.key.conversation))
            assert closed is None or frontier.began > closed, f"recorded after its end: {frontier}"

    def _sound(self) -> None:
        fleet = self._fleet
        assert not fleet.violations, fleet.violations
        assert not fleet.errors.records, fleet.errors.records[0]

    def _judge(self, turn: Turn) -> None:
        """The answer is that of full recomputation, or a clear error that may happen here."""
        turn.judged = True
        call = turn.call
        call.task.result()
        if turn.final and turn.who.conversation is not None and call.status == 200 and call.finished:
            self._note_closed(turn.who, turn.router, turn.began)
        assert not any(secret in call.body for secret in SECRETS), call.body
        if call.gone:
            if call.status == 200 and turn.stream:
                ids, _, _ = streamed(call.body)
                assert ids == turn.expected[: len(ids)] or not turn.body["return_token_ids"]
            return
        assert call.finished
        assert call.status is not None
        if call.status == 200:
            self._judge_answer(turn)
            return
        error = json.loads(call.body)["error"]
        assert error["message"]
        SEEN[f"status {call.status}"] += 1
        allowed: set[int] = set()
        if turn.wrong is not None:
            allowed.add(turn.wrong)
        if turn.troubled:
            allowed |= {429, 500, 502, 503, 504}
        if self.config["max_turns"]:
            allowed.add(429)
        assert call.status in allowed, (call.status, call.body, turn.body)
        if error["type"] in {"service_unavailable", "rate_limit_error"}:
            assert int(call.headers["retry-after"]) >= 1

    def _judge_answer(self, turn: Turn) -> None:
        call = turn.call
        assert turn.wrong is None, call.body
        if turn.stream:
            ids, text, end = streamed(call.body)
            if end != "[DONE]":
                assert turn.troubled, call.body
                assert json.loads(end)["error"]["message"]
                assert ids == turn.expected[: len(ids)] or not turn.body["return_token_ids"]
                SEEN["broken off"] += 1
                return
        else:
            choice = json.loads(call.body)["choices"][0]
            text = (choice.get("message") or {}).get("content") or choice.get("text") or ""
            ids = choice.get("token_ids") or []
        if turn.body["return_token_ids"]:
            assert ids == turn.expected, (ids, turn.expected, turn.body, call.headers)
        said = bytes(token for token in turn.expected if token != END_TOKEN).decode()
        assert text == said or "tools" in turn.body, (text, said)
        reuse = call.headers["x-antiphon-reuse"]
        SEEN[reuse.partition(";")[0] + reuse.rpartition(";")[2]] += 1
        past = self.pasts.setdefault(turn.who, Past())
        if "tools" in turn.body:
            return
        if "messages" in turn.body:
            past.messages, past.answer = turn.body["messages"], text
        else:
            past.text = turn.body["prompt"] + text

    # How it is done

    @property
    def _fleet(self) -> Fleet:
        assert self.fleet is not None
        return self.fleet

    def _router(self, which: int) -> Router:
        return self._fleet.routers[which % len(self._fleet.routers)]

    def _engine(self, index: int) -> SimulatedEngine:
        return self._fleet.engines[index % len(self._fleet.engines)]

    def _running(self) -> list[Turn]:
        return [turn for turn in self.turns if not turn.call.task.done()]

    def _start_router(self) -> None:
        config = self.config
        copied = ("paths", "calibrate", "keep_share", "conversations", "tenant_conversations", "max_turns")
        more = ("queue", "tenant_salt", "pull_grace", "keep")
        self._fleet.start_router(
            self.store if config["routers"] > 1 else None,
            **{name: config[name] for name in copied + more},
            probe_interval=10.0,
            pressure_interval=4.0,
            prefill_timeout=60.0,
            decode_timeout=90.0,
            idle_timeout=30.0,
        )

    def _mend(self) -> None:
        fleet = self._fleet
        self._trouble()
        fleet.cluster.failing = 0
        for engine in fleet.engines:
            engine.faults.clear()
            if id(engine) not in fleet.up:
                fleet.boot(engine)
            url = fleet.urls[id(engine)]
            role: Any = engine.settings.role
            for router in fleet.routers:
                workers = router.state.workers
                if any(listed.url == url for listed in workers.list()):
                    workers.undrain(role, url)
                else:
                    fleet.run(workers.add(role, url))

    def _let(self, seconds: float) -> None:
        self._fleet.pass_time(seconds)

    def _wait(self, turn: Turn) -> None:
        """Until the turn is over and what it leaves behind is tidied up."""

        async def over() -> None:
            done, _ = await asyncio.wait({turn.call.task}, timeout=FOR_EVER)
            assert done, f"a turn never ends: {turn.body}"
            for _ in range(12):
                await asyncio.sleep(0)

        self._fleet.run(over())

    def _troubled(self) -> bool:
        fleet = self._fleet
        return (
            fleet.cluster.failing > 0
            or len(fleet.up) < len(fleet.engines)
            or any(len(engine.faults) for engine in fleet.engines)
            or not all(turn.call.reads for turn in self.turns)
            or any(not w.serving or w.engine.breaker.tripped for r in fleet.routers for w in r.state.workers)
            or any(len([*r.state.workers]) < len(fleet.engines) for r in fleet.routers)
            or fleet.loop.time() - self.last_trouble < AFTERMATH
        )

    def _trouble(self) -> None:
        """Something goes wrong, or stops to: those who are on their way may feel it."""
        self.last_trouble = self._fleet.loop.time()
        for turn in self.turns:
            turn.troubled = True

    def _begin(
        self,
        who: Who,
        change: Any,
        question: str,
        extra: dict[str, Any],
        stream: bool,
        surface: str,
        which: int,
        final: bool,
    ) -> Turn:
        fleet, past = self._fleet, self.pasts.setdefault(who, Past())
        body: dict[str, Any] = {"model": "simulated", "return_token_ids": True, "stream": stream}
        body["user"] = who.owner
        if surface == "chat":
            body["messages"] = change(past, question)
            if len(body["messages"]) > 9:
                body["messages"] = begun_anew(past, question)
        else:
            body["prompt"] = (past.text if change in (verbatim, regenerated) else question) + question
            body["prompt"] = body["prompt"][-160:] if len(body["prompt"]) > 200 else body["prompt"]
            body["max_tokens"] = 5
        body |= {
            name: value
            for name, value in extra.items()
            if name not in ({"prompt"} if surface == "chat" else {"messages", "tools", "tool_choice"})
        }
        if who.salt is not None:
            body["cache_salt"] = who.salt
        if who.conversation is not None:
            body["conversation_id"] = who.conversation
        wrong, expected = oracle(fleet.decode[0].settings, body)
        headers = dict(who.headers)
        if final:
            headers["x-session-final"] = "true"
        router = self._router(which)
        path = "/v1/chat/completions" if surface == "chat" else "/v1/completions"
        call = fleet.call(router, "POST", path, json.dumps(body).encode(), headers)
        turn = Turn(who, router, body, call, fleet.loop.time(), wrong, expected, self._troubled(), final)
        self.turns.append(turn)
        return turn

    def _close(self, who: Who, router: Router) -> None:
        assert who.conversation is not None
        began = self._fleet.loop.time()
        quoted = "".join(f"%{byte:02x}" for byte in who.conversation.encode())
        call = self._fleet.call(router, "DELETE", f"/v1/conversations/{quoted}", headers=who.headers)
        self._fleet.run(asyncio.wait_for(call.task, FOR_EVER))
        assert call.status in {204, 404}
        self._note_closed(who, router, began)

    def _note_closed(self, who: Who, router: Router, at: float) -> None:
        """Turns that had begun by then leave nothing behind."""
        tenant = router.state.tenants.of(who.headers).name
        key = identify({"conversation_id": who.conversation}, {}, tenant).key
        assert key is not None
        self.closed[tenant, key.conversation] = at


def test_any_interleaving_keeps_all_promises() -> None:
    examples = (STEPS or 20_000) * 6 // 5 // EXAMPLE  # some end early
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=EXAMPLE,
            deadline=None,
            derandomize=not STEPS,
            database=None,
            print_blob=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )
    for what, count in sorted(SEEN.items()):
        print(f"{count:8} {what}")
    assert SEEN["steps"] >= (STEPS or 20_000)
