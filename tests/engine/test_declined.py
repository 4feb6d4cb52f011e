"""Engines that cannot reuse exactly: served without it where that is right, refused where it is not."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import antiphon
import antiphon_openai
from antiphon_server.protocol import Info
from antiphon_server.stack.command import render
from antiphon_server.stack.models import resolve
from antiphon_server.stack.ports import allocate
from antiphon_server.stack.settings import StackSettings
from antiphon_server.stack.stack import Stack
from rig import counters
from rig.answers import MODEL, assert_same, client_of, complete
from rig.hybrid import CONTEXT, hybrid_model

pytestmark = pytest.mark.engine

REFUSAL_S = 300.0


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Prefill, decode and router over a model with two kinds of KV."""
    folder = tmp_path_factory.mktemp("hybrid")
    model = hybrid_model(folder / MODEL)
    settings = StackSettings(model=str(model), port=18300, log_dir=folder, max_model_len=CONTEXT)
    with Stack(settings) as stack:
        yield stack


def test_model_with_several_kv_groups_is_served_without_reuse_and_says_why(hybrid: Stack) -> None:
    for url in (*hybrid.prefill_urls, *hybrid.decode_urls):
        info = Info(**httpx.get(f"{url}/antiphon/info", timeout=60).raise_for_status().json())
        assert not info.reuse
        assert "SlidingWindowSpec" in str(info.reuse_reason)
    prompt = "In the beginning there was a list. " * 8
    agent = antiphon_openai.wrap(client_of(hybrid.router_url))
    decode = client_of(hybrid.decode_urls[0])
    with agent, decode, antiphon.conversation():
        for _ in range(2):
            answer = complete(agent, prompt, salt="salt", tokens=48)
            outcome = {"path": "cold", "matched": "0", "reason": "unsupported"}
            assert answer.reuse.items() >= outcome.items()
            assert_same(answer, complete(decode, prompt, salt=uuid.uuid4().hex, tokens=48), "plain P/D")
            prompt += answer.text + " And then?"
    assert counters.eventually(lambda: counters.pinned(hybrid.decode_urls[0]), lambda n: n == 0) == 0


def test_engine_without_the_reuse_flag_refuses_to_start_and_says_what_to_set(tmp_path: Path) -> None:
    settings = StackSettings(model="tiny", router=False)
    spec = render(settings, allocate(settings), resolve("tiny"), tmp_path, cores=1)[0]
    at = spec.argv.index("--kv-transfer-config") + 1
    transfer = json.loads(spec.argv[at])
    del transfer["kv_connector_extra_config"]["bidirectional_kv_xfer"]
    argv = [*spec.argv[:at], json.dumps(transfer), *spec.argv[at + 1 :]]
    ended = subprocess.run(
        argv, env={**os.environ, **spec.env}, capture_output=True, text=True, timeout=REFUSAL_S, check=False
    )
    assert ended.returncode != 0
    assert "has no bidirectional_kv_xfer: set it to true" in ended.stdout + ended.stderr
