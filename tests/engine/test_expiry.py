"""A lease about to end, seen by a client: prefill declines to read, the answer comes all the same."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import OpenAI

import antiphon
import antiphon_openai
from rig.answers import assert_same, chat, client_of
from rig.fleet import CACHED, DECODE_TTL_S, UNCACHED, Pair, router
from rig.scenes import FIRST, NEXT

pytestmark = pytest.mark.engine

CARELESS = {
    "ANTIPHON_LEASE_TTL": "1000",
    "ANTIPHON_RENEW_INTERVAL": "900",
    "ANTIPHON_LEASE_MARGIN": "0",
}
"""A router that neither renews in time nor keeps clear of the end."""
LEFT_S = 3.0
"""Of the lease, when the handle is sent: prefill declines from 5 s on."""
SECONDS = 20.0
"""What "within seconds" means: vLLM without our plug-in waits for ever under policy recompute."""


def test_declined_pull_ends_in_a_right_answer_under_both_failure_policies(
    pairs: Mapping[str, Pair], salt: str, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        decode = stack.enter_context(client_of(pairs[CACHED].decode))
        clients: list[OpenAI] = []
        for kind in (CACHED, UNCACHED):
            log = tmp_path / f"{kind}.log"
            url = stack.enter_context(router(pairs[kind].prefill, pairs[kind].decode, log, CARELESS))
            clients.append(stack.enter_context(client_of(url)))
        conversation = stack.enter_context(antiphon.conversation())
        agents = [antiphon_openai.wrap(client, conversation=conversation) for client in clients]
        answers = [chat(agent, FIRST, salt=salt, tokens=80) for agent in agents]
        ends = time.monotonic() + DECODE_TTL_S
        messages = [*FIRST, answers[0].message, NEXT]
        reference = chat(decode, messages, salt=salt + "-fresh")
        time.sleep(ends - LEFT_S - time.monotonic())
        began = time.monotonic()
        with ThreadPoolExecutor(len(agents)) as pool:
            turns = list(pool.map(lambda agent: chat(agent, messages, salt=salt), agents))
        assert time.monotonic() - began < SECONDS
        for answer in turns:
            assert (answer.reuse["path"], answer.reuse["reason"]) == ("cold", "failed")
            assert_same(answer, reference, "the turn whose pull was declined")
