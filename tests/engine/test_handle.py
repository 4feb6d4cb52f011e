from __future__ import annotations

from typing import Any

import pytest

from antiphon_server.engine.handle import cut, fault, strip

HANDLE: dict[str, Any] = {
    "do_remote_decode": True,
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "remote_block_ids": [[4, 5, 6]],
    "remote_num_tokens": 70,
    "remote_blocks_expiry_time": 1.5,
    "future_field": "kept",
}


def test_what_an_engine_returns_has_no_fault() -> None:
    assert fault(HANDLE, groups=1) is None


@pytest.mark.parametrize(
    "change",
    [
        {"remote_block_ids": [4, 5]},
        {"remote_block_ids": [["x"]]},
        {"remote_block_ids": [[1], [2]]},
        {"remote_port": "5600"},
        {"remote_num_tokens": "70"},
        {"remote_num_tokens": -1},
        {"remote_blocks_expiry_time": "soon"},
        {"remote_host": None},
    ],
)
def test_ill_typed_handle_is_refused_before_the_scheduler_sees_it(change: dict[str, Any]) -> None:
    assert fault({**HANDLE, **change}, groups=1)


def test_missing_key_is_a_fault() -> None:
    assert fault({k: v for k, v in HANDLE.items() if k != "remote_request_id"}, groups=1)


def test_cut_keeps_blocks_and_tokens_aligned() -> None:
    params = {**HANDLE}
    cut(params, 64, 32)
    assert params["remote_block_ids"] == [[4, 5]]
    assert params["remote_num_tokens"] == 64


def test_stripped_handle_names_no_remote() -> None:
    params = {**HANDLE}
    strip(params)
    assert params == {"do_remote_decode": True, "future_field": "kept"}
