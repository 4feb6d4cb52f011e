"""The engine's counters in Prometheus' text form, under vLLM's names."""

from __future__ import annotations

from antiphon_server.simulator.engine import SimulatedEngine


def exposition(engine: SimulatedEngine) -> str:
    """Body of ``GET /metrics``."""
    own, counted = engine.settings, engine.counters
    base = f'engine="0",model_name="{own.model}"'
    config = f'block_size="{own.block_size}",num_gpu_blocks="{own.capacity}",engine="0"'
    config += f',enable_prefix_caching="{own.prefix_caching}"'
    rows: list[tuple[str, str, str, float]] = [
        ("vllm:num_requests_running", "gauge", base, engine.running),
        ("vllm:num_requests_waiting", "gauge", base, engine.waiting),
        ("vllm:kv_cache_usage_perc", "gauge", base, engine.used_blocks / own.capacity),
        ("vllm:cache_config_info", "gauge", config, 1),
        ("vllm:external_prefix_cache_queries_total", "counter", base, counted.queries),
        ("vllm:external_prefix_cache_hits_total", "counter", base, counted.pulled),
        *(
            ("vllm:prompt_tokens_by_source_total", "counter", f'{base},source="{source}"', value)
            for source, value in (
                ("local_compute", counted.computed),
                ("local_cache_hit", counted.local),
                ("external_kv_transfer", counted.pulled),
            )
        ),
        ("vllm:nixl_bytes_transferred_sum", "histogram", base, counted.transferred_bytes),
        ("vllm:nixl_bytes_transferred_count", "histogram", base, counted.transfers),
        ("vllm:nixl_num_failed_transfers_total", "counter", base, counted.failed_transfers),
        ("vllm:nixl_num_kv_expired_reqs_total", "counter", base, counted.declined),
        ("vllm:nixl_num_notifications_after_expiry_total", "counter", base, counted.late_notifications),
    ]
    lines: list[str] = []
    typed: set[str] = set()
    for name, kind, labels, value in rows:
        family = name.removesuffix("_sum").removesuffix("_count") if kind == "histogram" else name
        if family not in typed:
            typed.add(family)
            lines.append(f"# TYPE {family} {kind}")
        lines.append(f"{name}{{{labels}}} {float(value)}")
    return "\n".join(lines) + "\n"
