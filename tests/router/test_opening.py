"""A stream that only took the request has not begun: the turn may still be served elsewhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from antiphon_server.router.legs import FORMS
from antiphon_server.router.turn.beginning import Beginning
from antiphon_server.simulator import SimulatedCluster, expected_text

CONTENT = "Name the first letters, please, and take your time about it. " * 3
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": CONTENT}]},
    "completions": {"prompt": CONTENT},
    "responses": {"input": CONTENT},
    "messages": {"messages": [{"role": "user", "content": CONTENT}], "max_tokens": 50},
}
ENDS = {
    "chat": "data: [DONE]",
    "completions": "data: [DONE]",
    "responses": "event: response.completed",
    "messages": "event: message_stop",
}


@pytest.mark.parametrize("surface", FORMS)
async def test_decode_that_could_not_pull_is_replaced_unseen(start: Any, surface: str) -> None:
    rig = await start(decodes=2)
    rig.decode[0].cluster = SimulatedCluster()  # no prefill engine can be reached from here
    body = {"model": "simulated", **BODIES[surface], "stream": True}
    for _ in range(60):  # placed by chance, until it was this one's turn
        reply = await rig.client.post(FORMS[cast("Any", surface)].path, json=body)
        assert reply.status_code == 200
        assert "error" not in reply.text
        last = reply.text.split("\n\n")[-2]
        assert last.startswith(ENDS[surface])
        assert len(expected_text(rig.decode[0].settings, body, surface)) > 10
        if rig.legs(rig.decode[0]):
            break
    assert rig.legs(rig.decode[0])
    assert rig.count("antiphon_retries_total", leg="decode") >= 1


async def test_what_was_held_back_is_there_when_the_stream_begins() -> None:
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    word = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    chunks = iter([role, word[:20], word[20:]])

    class Reply:
        def header(self, name: bytes) -> bytes | None:
            return b"text/event-stream" if name == b"content-type" else None

        async def chunk(self) -> bytes | None:
            return next(chunks, None)

    async def opened() -> Reply:
        return Reply()

    worker = SimpleNamespace(succeeded=lambda now: None)
    leg: Any = SimpleNamespace(opened=opened)
    begun = await Beginning(leg, cast("Any", worker), "chat", lambda: 0.0).begun()
    assert begun.first is not None
    assert begun.first.startswith(role + word[:20])
