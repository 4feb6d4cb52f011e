"""What the router counts, for Prometheus. One registry an app, so that several can live in one process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from antiphon_server.router.plan import Plan

_TTFT = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 30.0, 60.0, 180.0)


class Metrics:
    """Counters and histograms; names start with ``antiphon_``."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.turns = Counter(
            "antiphon_turns", "Turns by path and reason", ["path", "reason"], registry=registry
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
            "Handles of finished turns: captured or missing; and burned: sent to prefill",
            ["event"],
            registry=registry,
        )
        self.leases = Counter(
            "antiphon_leases",
            "Leases by event: released, renewed, unknown, failed, abandoned",
            ["event"],
            registry=registry,
        )
        self.retries = Counter("antiphon_retries", "Legs sent again, by leg", ["leg"], registry=registry)
        self.gone = Counter(
            "antiphon_clients_gone", "Clients that left, by phase", ["phase"], registry=registry
        )
        self.frontiers = Gauge("antiphon_frontiers", "Conversations whose KV is kept", registry=registry)
        self.healthy = Gauge(
            "antiphon_worker_healthy", "1 if the engine answers", ["role", "worker"], registry=registry
        )

    def turn(self, plan: Plan, matched: int, pulled: int, ttft: float) -> None:
        """A turn's first byte goes out, ``ttft`` seconds after its request came in."""
        self.ttft.labels(plan.path.value).observe(ttft)
        self.turns.labels(plan.path.value, plan.reason.value).inc()
        self.matched.inc(matched)
        self.pulled.inc(pulled)

    def render(self) -> bytes:
        """Text exposition."""
        return generate_latest(self.registry)
