"""What the router counts, for Prometheus. One registry an app, so that several can live in one process."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from antiphon_server.router.fleet.breaker import BreakerState
from antiphon_server.router.fleet.pairs import Pairs
from antiphon_server.router.fleet.workers import Worker, Workers
from antiphon_server.router.keep.room import Rooms
from antiphon_server.router.plan.plan import Plan
from antiphon_server.router.plan.rates import Rates
from antiphon_server.router.plan.reasons import Path, Reason

_BREAKER = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
_TTFT = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 30.0, 60.0, 180.0)


class Metrics:
    """Counters and histograms; names start with ``antiphon_``."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._of_turns: dict[tuple[Path, Reason], tuple[Histogram, Counter]] = {}
        self._of_placements: dict[tuple[str, str], Counter] = {}
        self.turns = Counter(
            "antiphon_turns", "Turns by path and reason", ["path", "reason"], registry=registry
        )
        self.rates = Gauge(
            "antiphon_rate_tokens_per_second",
            "Learnt rates: prefill and append compute, pull and handed_over move",
            ["worker", "what"],
            registry=registry,
        )
        self.append_declined = Counter(
            "antiphon_append_declined",
            "Turns whose KV was there that did not go straight to decode, by why",
            ["reason"],
            registry=registry,
        )
        self.matched = Counter(
            "antiphon_matched_tokens", "Prompt tokens prefill did not compute", registry=registry
        )
        self.pulled = Counter(
            "antiphon_pulled_tokens", "Of them, tokens that came from decode", registry=registry
        )
        self.ttft = Histogram(
            "antiphon_ttft_seconds", "Request to first byte", ["path"], buckets=_TTFT, registry=registry
        )
        self.handles = Counter(
            "antiphon_handles",
            "Handles of finished turns: captured, missing, or faulty (a key is not there, so nothing can be "
            "kept); burned: sent to prefill; loopback: name a host that only their own machine reaches",
            ["event"],
            registry=registry,
        )
        self.leases = Counter(
            "antiphon_leases",
            "Leases by event: released, renewed, unknown, failed, abandoned; legs: left, may keep none",
            ["event"],
            registry=registry,
        )
        self.retries = Counter("antiphon_retries", "Legs sent again, by leg", ["leg"], registry=registry)
        self.gone = Counter(
            "antiphon_clients_gone", "Clients that left, by phase", ["phase"], registry=registry
        )
        self.in_flight = Gauge("antiphon_turns_in_flight", "Turns that are being served", registry=registry)
        self.tenant_in_flight = Gauge(
            "antiphon_tenant_turns_in_flight",
            "Of them, by tenant that a key or a gateway names, the others together; with tenant_metrics only",
            ["tenant"],
            registry=registry,
        )
        self.queue_depth = Gauge("antiphon_queue_depth", "Turns that wait to be admitted", registry=registry)
        self.queue_seconds = Histogram(
            "antiphon_queue_seconds",
            "Wait of turns that were not admitted at once",
            buckets=_TTFT,
            registry=registry,
        )
        self.admitted = Counter("antiphon_turns_admitted", "Turns admitted", registry=registry)
        self.refused = Counter(
            "antiphon_refused",
            "Requests refused before any engine saw them, by cause: full (the queue), timeout (in it), "
            "tenant (its own limit), draining, and the types of errors that clients see",
            ["cause"],
            registry=registry,
        )
        self.evictions = Counter(
            "antiphon_evictions",
            "Conversations whose KV was given up, by cause: idle (longer than keep), chance (will hardly "
            "return), expired (its lease could not be renewed), value (the engine's budget went to others), "
            "tenant and count (as many are kept as may be), pressure (the engine needed the memory), "
            "oversize (larger than the budget)",
            ["cause"],
            registry=registry,
        )
        self.kept_tokens = Gauge(
            "antiphon_kept_tokens",
            "Tokens of KV that conversations keep on a decode engine, over all routers",
            ["worker"],
            registry=registry,
        )
        self.reserved_tokens = Gauge(
            "antiphon_reserved_tokens",
            "Tokens that turns in flight will pin on a decode engine or still read there, and that are being "
            "released",
            ["worker"],
            registry=registry,
        )
        self.budget_tokens = Gauge(
            "antiphon_budget_tokens",
            "Tokens of KV that may be kept on a decode engine",
            ["worker"],
            registry=registry,
        )
        self.kv_usage = Gauge(
            "antiphon_worker_kv_usage",
            "Share of a decode engine's KV in use, as it said last",
            ["worker"],
            registry=registry,
        )
        self.kv_waiting = Gauge(
            "antiphon_worker_waiting",
            "Requests that wait on a decode engine, as it said last",
            ["worker"],
            registry=registry,
        )
        self.frontiers = Gauge("antiphon_frontiers", "Conversations whose KV is kept", registry=registry)
        worker = ["role", "worker"]
        self.healthy = Gauge("antiphon_worker_healthy", "1 if the engine answers", worker, registry=registry)
        self.draining = Gauge(
            "antiphon_worker_draining", "1 if the engine gets no new turn", worker, registry=registry
        )
        self.load = Gauge(
            "antiphon_worker_load", "What a worker or rank has to do now, in legs", worker, registry=registry
        )
        self.worker_breaker = Gauge(
            "antiphon_worker_breaker",
            "Breaker of an engine: 0 closed, 1 half open, 2 open",
            worker,
            registry=registry,
        )
        self.pair_breaker = Gauge(
            "antiphon_pair_breaker",
            "Breaker of a prefill and a decode worker whose transfers failed: 0 closed, 1 half open, 2 open",
            ["prefill", "decode"],
            registry=registry,
        )
        self.pairs_incompatible = Gauge(
            "antiphon_pairs_incompatible",
            "Prefill and decode engines that cannot hand over to each other, as they say of themselves; the "
            "log has the reasons",
            registry=registry,
        )
        self.store_degraded = Gauge(
            "antiphon_store_degraded",
            "1 while the shared store does not answer and local memory stands in for it",
            registry=registry,
        )
        self.placements = Counter(
            "antiphon_placements",
            "Workers chosen, by role and outcome: sticky (the conversation's own), moved_load (its own is "
            "overloaded), moved_health (its own is down, draining or shut out), new (it had none), least_bad "
            "(all are shut out)",
            ["role", "outcome"],
            registry=registry,
        )
        self.reloads = Counter(
            "antiphon_reloads",
            "Configurations read anew, by result: taken, faulty (nothing has changed)",
            ["result"],
            registry=registry,
        )
        self.discovery_failures = Counter(
            "antiphon_discovery_failures",
            "Watches of EndpointSlices that failed and were begun anew, by role; the log has the reasons",
            ["role"],
            registry=registry,
        )

    def turn(self, plan: Plan, matched: int, pulled: int, ttft: float) -> None:
        """A turn's first byte goes out, ``ttft`` seconds after its request came in."""
        labels = plan.path, plan.reason
        found = self._of_turns.get(labels)
        if found is None:
            found = self._of_turns[labels] = self.ttft.labels(plan.path), self.turns.labels(*labels)
        seconds, turns = found
        seconds.observe(ttft)
        turns.inc()
        if matched:
            self.matched.inc(matched)
        if pulled:
            self.pulled.inc(pulled)

    def placed(self, role: str, outcome: str) -> None:
        """A worker was chosen."""
        found = self._of_placements.get((role, outcome))
        if found is None:
            found = self._of_placements[role, outcome] = self.placements.labels(role, outcome)
        found.inc()

    def fleet(self, workers: Workers, pairs: Pairs, now: float) -> None:
        """Read the gauges of workers and pairs; those that left vanish."""
        for gauge in (self.healthy, self.draining, self.load, self.worker_breaker, self.pair_breaker):
            gauge.clear()
        for engine in workers.engines:
            labels = engine.role, engine.url
            self.healthy.labels(*labels).set(engine.healthy)
            self.draining.labels(*labels).set(engine.draining)
            self.worker_breaker.labels(*labels).set(_BREAKER[engine.breaker.state(now)])
        for worker in workers:
            self.load.labels(worker.role, worker.name).set(worker.load)
        for prefill, decode, state in pairs.states(now):
            self.pair_breaker.labels(prefill, decode).set(_BREAKER[state])
        self.pairs_incompatible.set(pairs.incompatible(workers.engines))

    def keeping(self, tokens: Mapping[Worker, int], rooms: Rooms) -> None:
        """Set the gauges of decode engines; those that left vanish. ``tokens``: that are kept there."""
        kept, reserved, budget = self.kept_tokens, self.reserved_tokens, self.budget_tokens
        for gauge in (kept, reserved, budget, self.kv_usage, self.kv_waiting):
            gauge.clear()
        for worker, resting in tokens.items():
            room = rooms.of(worker)
            kept.labels(worker.name).set(resting)
            reserved.labels(worker.name).set(room.busy + room.leaving)
            budget.labels(worker.name).set(rooms.budget(worker) or 0)
            if worker.pressure is not None:
                self.kv_usage.labels(worker.name).set(worker.pressure.usage)
                self.kv_waiting.labels(worker.name).set(worker.pressure.waiting)

    def measured(self, rates: Rates) -> None:
        """Set the rates' gauges."""
        self.rates.clear()
        for worker, what, value in rates.figures():
            self.rates.labels(worker, what).set(value)

    def render(self) -> bytes:
        """Text exposition."""
        return generate_latest(self.registry)
