"""What an engine says of itself, and its lease calls: the answers behind ``/antiphon/*``."""

from __future__ import annotations

import time
import uuid
from typing import Any, Literal

import vllm

from antiphon_server.protocol import (
    PROTOCOL,
    Deadline,
    Info,
    LeaseLimits,
    LeaseReply,
    LeaseRequest,
)
from antiphon_server.versions import NIXL_PACKAGES, installed

EPOCH = uuid.uuid4().hex
"""New with each start of the API server, which lives and dies with its engine."""

_ROLES: dict[str, Literal["prefill", "decode", "both"]] = {
    "kv_producer": "prefill",
    "kv_consumer": "decode",
    "kv_both": "both",
}


async def describe(engine_client: Any, config: Any, model: str) -> Info:
    """Collect :class:`Info`. Asks the workers, so it waits for the engine's running step."""
    transfer, model_config = config.kv_transfer_config, config.model_config
    ranks = await engine_client.collective_rpc("antiphon_describe")
    facts = ranks[0]
    extra = transfer.get_from_extra_config
    return Info(
        protocol=PROTOCOL,
        engine_id=transfer.engine_id,
        epoch=EPOCH,
        role=_ROLES[transfer.kv_role],
        model=model,
        vllm=vllm.__version__,
        nixl=installed(NIXL_PACKAGES) or "unknown",
        block_size=config.cache_config.block_size,
        kv_groups=facts["kv_groups"],
        tensor_parallel=config.parallel_config.tensor_parallel_size,
        data_parallel=config.parallel_config.data_parallel_size,
        threshold=int(extra("kv_recompute_threshold", 64)),
        capacity=(config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size,
        leases=LeaseLimits(
            decode=float(extra("decoder_kv_blocks_ttl", 480)),
            prefill=float(extra("kv_lease_duration", 30)),
            longest=facts["longest"],
        ),
        reuse=facts["reuse_reason"] is None,
        reuse_reason=facts["reuse_reason"],
        prefix_caching=bool(config.cache_config.enable_prefix_caching),
        text_only=not (model_config.is_multimodal_model or model_config.enable_prompt_embeds),
        names_legs=True,
        dtype=str(model_config.dtype).removeprefix("torch."),
    )


async def move_leases(engine_client: Any, request: LeaseRequest) -> LeaseReply:
    """Renew and release on every rank. A lease lives on one data-parallel engine, and there it holds only as
    long as its shortest tensor-parallel rank's.

    The clock is read before the call, so that no answered deadline is later than the worker's own.
    """
    now = time.perf_counter()
    renew = [(r.id, r.ttl) for r in request.renew]
    asked = {"renew": renew, "release": request.release, "legs": request.legs}
    engines = await _each_engine(engine_client, "antiphon_leases", asked)
    leases: dict[str, Deadline] = {}
    for request_id in (*(r.id for r in request.renew), *request.release):
        held = (_shortest(ranks, request_id) for ranks in engines)
        granted = next((seconds for seconds in held if seconds is not None), None)
        leases[request_id] = now + granted if granted is not None else "unknown"
    return LeaseReply(leases, sum(max(rank["pinned"] for rank in ranks) for ranks in engines))


def _shortest(ranks: list[dict[str, Any]], request_id: str) -> float | None:
    """Seconds granted by all ranks of an engine; None if one of them does not know the lease."""
    granted = [rank["granted"][request_id] for rank in ranks]
    return None if None in granted else min(granted)


async def _each_engine(engine_client: Any, method: str, kwargs: dict[str, Any]) -> list[list[Any]]:
    """Answers of the workers, by data-parallel engine. ``collective_rpc`` reaches all engines but brings the
    first one's answers only (vLLM 0.32)."""
    config = engine_client.vllm_config.parallel_config
    core: Any = getattr(engine_client, "engine_core", None)
    if config.data_parallel_size > 1 and hasattr(core, "call_utility_all_async"):
        answers: list[list[Any]] = await core.call_utility_all_async(
            "collective_rpc", method, None, (), kwargs
        )
        return answers
    return [await engine_client.collective_rpc(method, kwargs=kwargs)]
