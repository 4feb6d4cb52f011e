"""vLLM's ``benchmark_serving_multi_turn.py --send-conversation-id``: what it sends, and how it reads replies.

The script is not in vLLM's wheel. As of 0.33 it asks for ``/version`` and ``/v1/models`` first; then several
processes take turns among their conversations. Every line of a reply is JSON with a choice, or the end.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from antiphon_server.simulator import expected_text
from rig.recipe import turns_of

LIMIT = 20
QUESTION = "{} is a nice number... Please rewrite the following text and add more content: {}"
TEXT = "Sing, goddess, of the wrath that brought so many sorrows on them, and tell who set them at odds. "


@dataclass
class Client:
    """One process of the script. ``histories``: messages by conversation; ``replies``: all lines read."""

    router: str
    stream: bool = True
    named: bool = True
    key: str | None = None
    histories: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    replies: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, conversation: str, question: str) -> str:
        """One turn."""
        messages = self.histories.setdefault(conversation, [])
        messages.append({"role": "user", "content": question})
        body: dict[str, Any] = {"model": "simulated", "messages": messages}
        headers = {"Content-Type": "application/json"}
        if self.named:
            body["conversation_id"] = conversation
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": False}}
        body["max_tokens"] = LIMIT
        if self.named:
            headers["X-Session-ID"] = conversation
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        with httpx.stream(
            "POST",
            f"{self.router}/v1/chat/completions",
            content=json.dumps(body),
            headers=headers,
            timeout=60,
            trust_env=False,
        ) as reply:
            assert reply.status_code == 200, reply.read()
            answer = "".join(self._read(reply.iter_lines()))
        messages.append({"role": "assistant", "content": answer})
        return answer

    def _read(self, lines: Iterator[str]) -> Iterator[str]:
        ended = not self.stream
        for line in filter(None, map(str.strip, lines)):
            chunk = line.removeprefix("data: ")
            if chunk == "[DONE]":
                ended = True
                continue
            data = json.loads(chunk)
            self.replies.append(data)
            said = data["choices"][0]["delta" if self.stream else "message"]
            yield said.get("content") or ""
        assert ended


def question(conversation: int, turn: int) -> str:
    return QUESTION.format(conversation, TEXT[: 40 + 7 * turn + conversation])


def take_turns(client: Client, conversations: list[int], turns: range) -> None:
    """The script's round robin."""
    for turn, conversation in itertools.product(turns, conversations):
        client.ask(f"CONV_ID_{conversation}", question(conversation, turn))


def run(clients: list[Client], turns: range) -> None:
    """All clients at once, each with two conversations."""
    with ThreadPoolExecutor(len(clients)) as pool:
        for done in [
            pool.submit(take_turns, client, [2 * index, 2 * index + 1], turns)
            for index, client in enumerate(clients)
        ]:
            done.result()


def assert_exact(stack: Any, clients: list[Client]) -> None:
    """Every answer is what full recomputation would have given for the history before it."""
    for client in clients:
        for messages in client.histories.values():
            for end in range(1, len(messages), 2):
                body = {"model": "simulated", "messages": messages[:end], "max_tokens": LIMIT}
                assert messages[end]["content"] == expected_text(stack.decode.settings, body, "chat")


def test_its_first_questions_are_answered(simulated_stack: Any) -> None:
    router = simulated_stack().router
    httpx.get(f"{router}/version", trust_env=False)  # whatever the status; only the connection must hold
    models = httpx.get(f"{router}/v1/models", trust_env=False).raise_for_status().json()
    assert [(model["id"], model["max_model_len"]) for model in models["data"]] == [("simulated", 131072)]


@pytest.mark.parametrize("paths", [["reuse"], ["reuse", "append"]], ids=["reuse", "append"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_conversations_are_known_and_reused(simulated_stack: Any, stream: bool, paths: list[str]) -> None:
    stack = simulated_stack(router={"paths": paths, "calibrate": "append" in paths})
    clients = [Client(stack.router, stream) for _ in range(2)]
    run(clients, range(4))
    assert_exact(stack, clients)
    turns = turns_of(stack.router)
    assert (turns["cold", "first"], sum(turns.values())) == (4, 16)
    assert {path for path, reason in turns if reason != "first"} <= {"reuse", "append"}
    assert all("kv_transfer_params" not in reply for client in clients for reply in client.replies)


def test_streams_tell_no_usage_when_none_is_asked_for(simulated_stack: Any) -> None:
    client = Client(simulated_stack().router)
    run([client], range(2))
    assert [reply for reply in client.replies if reply.get("usage") or len(reply["choices"]) != 1] == []


def test_warmed_up_conversations_go_on(simulated_stack: Any) -> None:
    """``--warmup-step``: first turns by other processes, under the same ids."""
    stack = simulated_stack()
    warm = [Client(stack.router) for _ in range(2)]
    run(warm, range(1))
    clients = [Client(stack.router, histories=client.histories) for client in warm]
    run(clients, range(1, 3))
    assert_exact(stack, clients)
    assert turns_of(stack.router) == {("cold", "first"): 4, ("reuse", "full"): 8}


def test_second_run_meets_the_first_ones_ids_and_stays_exact(simulated_stack: Any) -> None:
    stack = simulated_stack()
    run([Client(stack.router)], range(2))
    again = Client(stack.router)
    for conversation, turn in itertools.product(range(2), range(2)):
        again.ask(f"CONV_ID_{conversation}", f"Something else, number {turn}, of {conversation}.")
    assert_exact(stack, [again])
    assert turns_of(stack.router)["cold", "first"] == 2


def test_second_run_with_a_key_of_its_own_begins_anew(simulated_stack: Any) -> None:
    stack = simulated_stack()
    run([Client(stack.router)], range(2))
    again = Client(stack.router, key="run-2")
    run([again], range(2))
    assert_exact(stack, [again])
    assert turns_of(stack.router) == {("cold", "first"): 4, ("reuse", "full"): 4}


def test_without_ids_it_is_plain_prefill_and_decode(simulated_stack: Any) -> None:
    stack = simulated_stack()
    client = Client(stack.router, named=False)
    run([client], range(2))
    assert_exact(stack, [client])
    assert turns_of(stack.router) == {("cold", "anonymous"): 4}
