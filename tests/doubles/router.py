"""The kit's fake router under its former name, until every test has moved to ``antiphon.testing``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.testing import FakeRouter, Recorded

__all__ = ["Double", "Recorded", "chat_message", "double", "running"]


class Double(FakeRouter):
    def __enter__(self) -> Double:
        self.start()
        return self

    def __init__(self) -> None:
        super().__init__()
        self.answer = lambda call: '{"city": "Rome"}'

    def ends(self) -> list[str]:
        return [request.path for request in self.requests if request.method == "DELETE"]


def chat_message(message: dict[str, Any]) -> dict[str, Any]:
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "finish_reason": reason, "message": message}
    return {"id": "x-1", "created": 1, "model": "m", "object": "chat.completion", "choices": [choice]}


def running() -> Double:
    return Double()


@pytest.fixture
def double() -> Iterator[Double]:
    with Double() as double:
        yield double
