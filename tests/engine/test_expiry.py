"""A lease that is over, as a client sees it: prefill declines to read, the answer comes all the same."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

import antiphon
import antiphon_openai
from rig.answers import assert_same, chat, client_of
from rig.backdated import backdated
from rig.fleet import CACHED, UNCACHED, Pair, router
from rig.scenes import FIRST, NEXT

pytestmark = pytest.mark.engine

SECONDS = 20.0
"""vLLM without our plug-in waits for ever under policy recompute."""


@pytest.mark.parametrize("kind", [CACHED, UNCACHED], ids=["policy recompute", "policy fail"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_declined_pull_ends_in_a_right_answer_within_seconds(
    stream: bool, kind: str, pairs: Mapping[str, Pair], salt: str, tmp_path: Path
) -> None:
    pair = pairs[kind]
    with contextlib.ExitStack() as stack:
        decode = stack.enter_context(client_of(pair.decode))
        late = stack.enter_context(backdated(pair.decode))
        url = stack.enter_context(router(pair.prefill, late, tmp_path / "router.log"))
        agent = antiphon_openai.wrap(stack.enter_context(client_of(url)))
        stack.enter_context(antiphon.conversation())
        first = chat(agent, FIRST, salt=salt, tokens=80, stream=stream)
        messages = [*FIRST, first.message, NEXT]
        began = time.monotonic()
        answer = chat(agent, messages, salt=salt, stream=stream)
        assert time.monotonic() - began < SECONDS
        assert (answer.reuse["path"], answer.reuse["reason"]) == ("cold", "failed")
        assert_same(answer, chat(decode, messages, salt=salt + "-fresh"), "the turn whose pull was declined")
