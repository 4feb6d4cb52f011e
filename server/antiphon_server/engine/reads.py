"""Reads that outlast the lease on what they read.

vLLM (0.32) does not begin a read shortly before the blocks' deadline, but trusts one that is under way then.
Nobody renews decode's lease while prefill reads, so the end of a long read may come from blocks that hold
another request's KV by then.
"""

from __future__ import annotations

from typing import Any


def distrust_late(worker: Any) -> None:
    """Have the connector worker report as failed each unfinished read whose deadline is here, or nearly so.

    To be called right before the worker is asked which reads are done.
    """
    for request_id in worker._recving_transfers:
        meta = worker._recving_metadata.get(request_id)
        if meta is not None and worker._is_turn2_read_expired(meta):
            worker._recv_failures.add(request_id)
