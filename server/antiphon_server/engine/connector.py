"""The KV connector: vLLM's NIXL pull connector that checks what it pulls.

Decode seals its handle with a prefix chain. Prefill compares the chain with the new prompt before vLLM asks
for remote KV and cuts the handle to the common prefix; decode checks that prefill's KV is its own prompt's.
Everything else, transfers and leases included, is vLLM's.

Turned on with ``--kv-transfer-config '{"kv_connector": "AntiphonConnector", "kv_connector_module_path":
"antiphon_server.engine.connector", "kv_connector_extra_config": {"bidirectional_kv_xfer": true}, ...}'``.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlConnector
from vllm.distributed.nixl_utils import NixlWrapper
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils

from antiphon_server.engine import handle, progress, reads, support
from antiphon_server.engine.hashing import Hashing, Verdict, compare, covers, tail_digest
from antiphon_server.engine.leases import LeaseBook
from antiphon_server.protocol import Match, seal_of, sealed

logger = init_logger("vllm.antiphon.connector")

UNCHECKED_OPTION = "antiphon_unsafe_skip_prefix_check"
"""Test-only extra config: reuse as stock vLLM does it, so that the tests can show it goes wrong."""
LONGEST_LEASE_OPTION = "antiphon_longest_lease"
LONGEST_LEASE_S = 480.0
_NOTE = "_antiphon"


class AntiphonConnector(NixlConnector):
    """See the module. One instance lives in the scheduler, one in each worker rank."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        extra = vllm_config.kv_transfer_config.get_from_extra_config
        support.require(vllm.__version__, reuse_flag=bool(extra("bidirectional_kv_xfer", False)))
        cores_to_spare = current_platform.device_type != "cpu"
        with contextlib.nullcontext() if cores_to_spare else progress.patient(NixlWrapper):
            super().__init__(vllm_config, role, kv_cache_config)
        self._unchecked = bool(extra(UNCHECKED_OPTION, False))
        if self._unchecked:
            logger.error("%s is set: this engine computes on KV of other prompts", UNCHECKED_OPTION)
        block_size = vllm_config.cache_config.block_size
        unit = getattr(kv_cache_config, "hash_block_size", None) or block_size
        parallel = vllm_config.parallel_config
        self._kv_groups = [type(g.kv_cache_spec).__name__ for g in kv_cache_config.transfer_groups]
        self._declined = support.decline_reason(
            kv_groups=self._kv_groups,
            hash_algorithm=vllm_config.cache_config.prefix_caching_hash_algo,
            hash_seed_pinned="PYTHONHASHSEED" in os.environ,
            context_parallel=max(
                parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size
            ),
            block_size=block_size,
            hash_unit=unit,
        )
        self._hashing = Hashing(
            algorithm=vllm_config.cache_config.prefix_caching_hash_algo,
            seed="",
            block_size=block_size,
            unit=unit,
        )
        # What decode reads is kept alive by its heartbeats to prefill.
        self._reads_expire = vllm_config.kv_transfer_config.kv_role != "kv_consumer"
        if role == KVConnectorRole.WORKER and not hasattr(self.connector_worker, "_recv_failures"):
            logger.warning("This vLLM cannot be told of failed reads: keep leases longer than transfers")
            self._reads_expire = False
        self._book: LeaseBook | None = None
        if role == KVConnectorRole.WORKER:
            worker = self.connector_worker
            self._book = LeaseBook(
                worker._reqs_to_send,
                worker._reqs_to_process,
                float(extra(LONGEST_LEASE_OPTION, LONGEST_LEASE_S)),
            )
        if self._declined:
            logger.warning("KV reuse declined, serving plain prefill/decode: %s", self._declined)

    # --- what the API server asks the workers (see extension.py) ---

    @property
    def leases(self) -> LeaseBook:
        """This rank's leases; worker side only."""
        assert self._book is not None
        return self._book

    def describe(self) -> dict[str, Any]:
        """Facts that only the engine's processes know: KV groups, and why reuse is declined."""
        return {"kv_groups": self._kv_groups, "reuse_reason": self._declined, "longest": self.leases.longest}

    # --- scheduler side ---

    def _hashes(self) -> Hashing:
        """The hashing with its seed, which vLLM settles only after connectors are built."""
        if not self._hashing.seed:
            seed = bytes(kv_cache_utils.NONE_HASH).hex()[:16]
            self._hashing = Hashing(
                self._hashing.algorithm, seed, self._hashing.block_size, self._hashing.unit
            )
        return self._hashing

    def on_new_request(self, request: Any) -> None:
        """As in vLLM, which ends the engine on params that are no object (``vllm_xargs`` lets them in)."""
        if not isinstance(request.kv_transfer_params, dict | None):
            logger.error("kv_transfer_params of %s ignored: not an object", request.request_id)
            request.kv_transfer_params = None
        super().on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens to fetch beyond the local ones, and whether they come asynchronously (vLLM's contract)."""
        params = request.kv_transfer_params
        if not params:
            return 0, False
        if params.get("_remote_blocks_processed"):
            # This request's one transfer is spent: it failed, or its blocks were lost to preemption. Asking
            # again would wait for a read that never starts (vLLM 0.32 hangs here, policy "recompute").
            note = params.get(_NOTE)
            if note is not None:
                lost = note["pulled"] > 0
                note.update(matched=num_computed_tokens, pulled=0)
                note["match"] = Match.FAILED if lost else note["match"]
            return 0, False
        if params.get("do_remote_decode"):
            return self._match_prefill(request, params, num_computed_tokens)
        if params.get("do_remote_prefill"):
            self._check_decode(request, params)
        answer: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return answer

    def _match_prefill(
        self, request: Any, params: dict[str, Any], num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        verdict = params.get("_verdict")
        if verdict is None:
            verdict = params["_verdict"] = self._judge(request, params)
        tokens, asynchronous = super().get_num_new_matched_tokens(request, num_computed_tokens)
        match = verdict.match
        if match in (Match.FULL, Match.CUT) and not tokens:
            match = Match.LOCAL if verdict.tokens <= num_computed_tokens else Match.THRESHOLD
        pulled = tokens or 0
        params[_NOTE] = {"matched": num_computed_tokens + pulled, "pulled": pulled, "match": match}
        return tokens, asynchronous

    def _judge(self, request: Any, params: dict[str, Any]) -> Verdict:
        """Compare the handle with the prompt and cut it, once per request."""
        if not params.get("remote_block_ids"):
            return Verdict(0, Match.NONE)
        wrong = handle.fault(params, len(self._kv_groups))
        if wrong or self._declined:
            logger.warning("Handle of %s not used: %s", request.request_id, wrong or self._declined)
            handle.strip(params)
            return Verdict(0, Match.UNSUPPORTED)
        if self._unchecked:
            return Verdict(int(params.get("remote_num_tokens") or 0), Match.FULL)
        hashing = self._hashes()
        verdict = compare(hashing, seal_of(params), request.block_hashes, request.num_prompt_tokens)
        held = min(len(group) for group in params["remote_block_ids"]) * hashing.block_size
        if verdict.tokens > held:
            verdict = Verdict(held, Match.CUT)
        handle.cut(params, verdict.tokens, hashing.block_size)
        return verdict

    def _check_decode(self, request: Any, params: dict[str, Any]) -> None:
        """Prefill's KV must be this prompt's; else decode computes it (stock prefill sends no seal)."""
        wrong = handle.fault(params, len(self._kv_groups)) if params.get("remote_block_ids") else None
        seal = seal_of(params)
        if wrong is None and (seal is None or self._unchecked or self._declined):
            return
        needed = self.connector_scheduler._get_remote_prefill_token_count(request.num_prompt_tokens)
        if wrong is None:
            assert seal is not None
            prompt = request.prompt_token_ids or []
            if covers(self._hashes(), seal, request.block_hashes, prompt, needed):
                return
            wrong = "it is sealed over another prompt"
        logger.error("Prefill's handle for %s not used, decode computes: %s", request.request_id, wrong)
        handle.strip(params)
        params["do_remote_prefill"] = False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """As in vLLM; a decode request that pulls nothing is tracked too, or its lease would never end."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if request.kv_transfer_params:
            self.connector_scheduler._reqs_in_batch.add(request.request_id)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Whether the blocks outlive the request, and the sealed handle to them."""
        return self._seal(request, *super().request_finished(request, block_ids))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As :meth:`request_finished`, for vLLM's grouped call."""
        return self._seal(request, *super().request_finished_all_groups(request, block_ids))

    def _seal(
        self, request: Any, kept: bool, params: dict[str, Any] | None
    ) -> tuple[bool, dict[str, Any] | None]:
        if not params or not params.get("remote_block_ids") or self._declined:
            return kept, params
        hashing = self._hashes()
        if params["do_remote_prefill"]:  # finished on prefill: decode takes the whole prompt
            tokens = request.num_prompt_tokens
            prompt = request.prompt_token_ids or []
            note = request.kv_transfer_params.get(_NOTE) or {}
            # vLLM stamps only decode's handles. With it decode declines to read blocks whose lease ran out
            # while it was busy, and computes instead.
            params["remote_blocks_expiry_time"] = self.connector_scheduler._reqs_need_send.get(
                request.request_id
            )
            seal = hashing.seal(
                request.block_hashes,
                tokens,
                tail=tail_digest(prompt[tokens // hashing.block_size * hashing.block_size :]),
                **note,
            )
        else:  # the last sampled token was never fed back, so its KV does not exist
            tokens = max(0, min(request.num_computed_tokens, request.num_tokens - 1))
            seal = hashing.seal(request.block_hashes, tokens)
        if not self._unchecked:
            # Look-ahead blocks of speculative decoding would shift the reader's pairing of blocks.
            blocks = -(-tokens // hashing.block_size)
            params["remote_block_ids"] = tuple(list(g[:blocks]) for g in params["remote_block_ids"])
        return kept, sealed(params, seal)

    # --- worker side ---

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Start this step's transfers; then apply releases that overtook their deadlines."""
        super().start_load_kv(forward_context, **kwargs)
        self.leases.arrived(self._connector_metadata.reqs_to_send, time.perf_counter())

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """As in vLLM, but a read that outlasted its lease has failed."""
        if self._reads_expire:
            reads.distrust_late(self.connector_worker)
        return super().get_transfer_results(finished_req_ids)


__all__ = ["AntiphonConnector"]
