"""The handle as an engine receives it: checked before vLLM's scheduler trusts its types.

An ill-typed field would raise inside the engine core and take every request with it.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Remote(msgspec.Struct, frozen=True):
    """The fields of ``kv_transfer_params`` that vLLM's pull needs (vllm 0.31..0.32)."""

    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int
    remote_block_ids: list[list[int]]
    remote_num_tokens: int | None = None
    remote_blocks_expiry_time: float | None = None
    tp_size: int = 1
    dcp_size: int = 1
    pp_size: int = 1


REMOTE_FIELDS = tuple(Remote.__struct_fields__)


def fault(params: dict[str, Any], groups: int) -> str | None:
    """Why the handle cannot be used, or None. ``groups``: KV cache groups that are transferred."""
    try:
        remote = msgspec.convert({k: params[k] for k in REMOTE_FIELDS if k in params}, Remote)
    except msgspec.ValidationError as error:
        return str(error)
    if len(remote.remote_block_ids) != groups:
        return f"it lists blocks of {len(remote.remote_block_ids)} KV groups, this model has {groups}"
    if remote.remote_num_tokens is not None and remote.remote_num_tokens < 0:
        return f"remote_num_tokens is {remote.remote_num_tokens}"
    return None


def strip(params: dict[str, Any]) -> None:
    """Forget where the remote KV lives, in place: vLLM then neither pulls nor notifies."""
    for field in REMOTE_FIELDS:
        params.pop(field, None)


def cut(params: dict[str, Any], tokens: int, block_size: int) -> None:
    """Limit the handle to its first ``tokens`` tokens, whole blocks, in place.

    The worker pairs blocks from the end (``remote[-n_local:]``), so the lists must end where the tokens do.
    With nothing left vLLM only notifies the holder, which frees the blocks.
    """
    blocks = tokens // block_size
    params["remote_num_tokens"] = tokens
    params["remote_block_ids"] = [group[:blocks] for group in params["remote_block_ids"]]
