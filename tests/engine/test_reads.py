"""vLLM's own worker, with its network replaced: what becomes of a read that outlasts its lease."""

from __future__ import annotations

import queue
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from antiphon_server.engine.reads import distrust_late

pull_worker = pytest.importorskip(
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker", reason="vLLM is not installed"
)


def reading(left: float, state: str) -> Any:
    """A worker in the middle of one read, of blocks that are kept for ``left`` seconds more."""
    worker: Any = MagicMock(spec=pull_worker.NixlPullConnectorWorker)
    for name in ("get_transfer_results", "_is_turn2_read_expired", "_pop_done_transfers"):
        setattr(worker, name, getattr(pull_worker.NixlPullConnectorWorker, name).__get__(worker))
    remote = SimpleNamespace(
        engine_id="d", blocks_expiry_time=time.perf_counter() + left, block_ids=([1, 2],), request_id="r"
    )
    meta = SimpleNamespace(remote=remote, local_block_ids=([7, 8],), local_physical_block_ids=([7, 8],))
    meta.region_blocks_to_zero = [[]]
    fields = dict[str, Any](
        _recving_metadata={"p": meta},
        _recving_transfers={"p": [1]},
        _recv_failures=set(),
        _failed_recv_reqs=queue.Queue(),
        _invalid_block_ids=queue.Queue(),
        _pending_recv_notifs={},
        _replicated_pcp_done_sending=set(),
        _engine_clock_offset={"d": 0.0},
        _is_hma_required=False,
        use_host_buffer=False,
        tp_rank=0,
        transfer_topo=MagicMock(),
        xfer_stats=MagicMock(),
        nixl_wrapper=MagicMock(),
    )
    for name, value in fields.items():
        setattr(worker, name, value)
    worker._get_new_notifs.return_value = set()
    worker.nixl_wrapper.check_xfer_state.return_value = state
    return worker


def test_read_in_time_is_trusted() -> None:
    worker = reading(60.0, "DONE")
    distrust_late(worker)
    results = worker.get_transfer_results()
    assert (results.finished_recving, results.failed_recving) == ({"p"}, set())
    assert worker._invalid_block_ids.empty()


def test_read_that_outlasts_its_lease_has_failed() -> None:
    worker = reading(-1.0, "DONE")
    assert not worker.get_transfer_results().failed_recving, "vLLM tells late reads itself: drop this check"
    worker = reading(-1.0, "DONE")
    distrust_late(worker)
    results = worker.get_transfer_results()
    assert (results.finished_recving, results.failed_recving) == ({"p"}, {"p"})
    assert worker._invalid_block_ids.get_nowait() == {7, 8}


def test_blocks_are_not_given_back_while_a_late_read_still_writes_them() -> None:
    worker = reading(-1.0, "PROC")
    distrust_late(worker)
    assert not worker.get_transfer_results().finished_recving
    worker.nixl_wrapper.check_xfer_state.return_value = "DONE"
    assert worker.get_transfer_results().failed_recving == {"p"}
