"""An engine's own counters, from its Prometheus page."""

from __future__ import annotations

from dataclasses import dataclass, fields

from prometheus_client.parser import text_string_to_metric_families

_SERIES = {
    "vllm:nixl_bytes_transferred_sum": "received",
    "vllm:nixl_xfer_time_seconds_sum": "receiving",
    "vllm:e2e_request_latency_seconds_sum": "busy",
    "vllm:request_prefill_time_seconds_sum": "computing",
    "vllm:request_queue_time_seconds_sum": "waiting",
}
_RUNNING = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_SOURCES = {
    "local_compute": "computed",
    "local_cache_hit": "local",
    "external_kv_transfer": "pulled",
}


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over an engine's ranks, since its start.

    ``received``: bytes of KV that it pulled from its peers, in ``receiving`` seconds of transfer. ``busy``:
    seconds of its requests. ``computing``: of them, from a prompt's first step to the first token;
    ``waiting``: before that step, for other requests and for KV that is pulled. ``computed``, ``local``,
    ``pulled``: prompt tokens by where their KV came from.
    """

    received: float = 0.0
    receiving: float = 0.0
    busy: float = 0.0
    computed: float = 0.0
    local: float = 0.0
    pulled: float = 0.0
    computing: float = 0.0
    waiting: float = 0.0

    def __sub__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(Counters)))

    def __truediv__(self, number: float) -> Counters:
        return Counters(*(getattr(self, f.name) / number for f in fields(Counters)))

    def __add__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Counters)))


@dataclass(frozen=True, slots=True)
class Page:
    """One reading. ``caching``: whether the engine keeps a prefix cache; None where it does not say.
    ``running``: requests that run or wait there."""

    counters: Counters
    caching: bool | None = None
    running: int = 0


def read(text: str) -> Page:
    """Counters of a ``/metrics`` page; a series that is not there counts 0."""
    sums: dict[str, float] = {}
    caching: bool | None = None
    running = 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = _SERIES.get(sample.name)
            if sample.name == "vllm:prompt_tokens_by_source_total":
                name = _SOURCES.get(sample.labels.get("source", ""))
            if name is not None:
                sums[name] = sums.get(name, 0.0) + sample.value
            if sample.name in _RUNNING:
                running += sample.value
            said = sample.labels.get("enable_prefix_caching")
            if sample.name == "vllm:cache_config_info" and said is not None:
                caching = said == "True"
    return Page(Counters(**sums), caching, round(running))
