from __future__ import annotations

from antiphon_server.counters import Counters, read

PAGE = """\
# HELP vllm:nixl_bytes_transferred Histogram of bytes transferred per NIXL KV Cache transfers.
# TYPE vllm:nixl_bytes_transferred histogram
vllm:nixl_bytes_transferred_bucket{engine="0",le="1024.0",model_name="tiny"} 0.0
vllm:nixl_bytes_transferred_bucket{engine="0",le="+Inf",model_name="tiny"} 2.0
vllm:nixl_bytes_transferred_count{engine="0",model_name="tiny"} 2.0
vllm:nixl_bytes_transferred_sum{engine="0",model_name="tiny"} 3.0e+06
vllm:nixl_bytes_transferred_sum{engine="1",model_name="tiny"} 1.0e+06
# TYPE vllm:nixl_xfer_time_seconds histogram
vllm:nixl_xfer_time_seconds_sum{engine="0",model_name="tiny"} 0.25
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="tiny"} 4.5
# TYPE vllm:request_prefill_time_seconds histogram
vllm:request_prefill_time_seconds_sum{engine="0",model_name="tiny"} 2.5
vllm:request_prefill_time_seconds_sum{engine="1",model_name="tiny"} 0.5
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_sum{engine="0",model_name="tiny"} 0.75
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 300.0
vllm:prompt_tokens_by_source_total{engine="0",source="local_cache_hit"} 64.0
vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 1024.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",enable_prefix_caching="False",engine="0"} 1.0
"""


def test_counters_are_summed_over_an_engines_ranks() -> None:
    assert read(PAGE).counters == Counters(
        received=4e6,
        receiving=0.25,
        busy=4.5,
        computed=300,
        local=64,
        pulled=1024,
        computing=3.0,
        waiting=0.75,
    )


def test_series_that_are_not_there_count_nothing() -> None:
    assert read("# TYPE up gauge\nup 1.0\n").counters == Counters()


def test_page_tells_whether_the_engine_keeps_a_prefix_cache() -> None:
    assert read(PAGE).caching is False
    assert read(PAGE.replace('"False"', '"True"')).caching is True
    assert read("").caching is None


def test_page_tells_how_many_requests_the_engine_has() -> None:
    assert read(PAGE).running == 3
    assert read("").running == 0


def test_difference_is_taken_field_by_field() -> None:
    now = Counters(received=5, receiving=4, busy=3, computed=2, local=1, pulled=6)
    assert now - Counters(received=1, computed=2) == Counters(4, 4, 3, 0, 1, 6)
    assert now + Counters(received=1) == Counters(6, 4, 3, 2, 1, 6)
    assert now / 2 == Counters(2.5, 2, 1.5, 1, 0.5, 3)
