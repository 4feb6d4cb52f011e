"""A coding agent that knows nothing of Antiphon: the base URL is all that it is told.

    python examples/coding_agent.py --base-url http://localhost:8000/v1

It speaks ``/v1/messages`` and names its session in a header of its own, as Claude Code does; Codex and
OpenCode send ``session-id`` or ``x-session-affinity``. The router reads all of these, so every turn after the
first starts from the KV of the last one. What the router did stands in each reply's ``X-Antiphon-Reuse``.
"""

from __future__ import annotations

import argparse
import os
import uuid
from typing import Any

import httpx

FILES = {
    "shelf.py": "PIECES = {'hinges': 12}\n\ndef worth(item, euros):\n    return PIECES[item] + euros\n",
    "test_shelf.py": "from shelf import worth\n\ndef test():\n    assert worth('hinges', 2.45) == 29.40\n",
}
"""The project that it works on."""


def read(path: str = "shelf.py") -> str:
    return FILES.get(path, f"there is no {path}; there are {', '.join(FILES)}")


def write(path: str = "", text: str = "") -> str:
    FILES[path] = text
    return f"{path}: {len(text.splitlines())} lines"


TOOLS = {"read": read, "write": write}
PATH = {"type": "string", "enum": list(FILES)}
SCHEMAS = [
    {
        "name": "read",
        "description": "A file's text.",
        "input_schema": {"type": "object", "properties": {"path": PATH}, "required": ["path"]},
    },
    {
        "name": "write",
        "description": "Replace a file's text.",
        "input_schema": {
            "type": "object",
            "properties": {"path": PATH, "text": {"type": "string"}},
            "required": ["path", "text"],
        },
    },
]


class Session:
    """One task after the other on one history."""

    def __init__(self, http: httpx.Client, model: str, session_id: str) -> None:
        self._http, self._model = http, model
        self._headers = {"x-claude-code-session-id": session_id}
        self._messages: list[dict[str, Any]] = []

    def do(self, task: str, most_turns: int) -> str:
        """Work on a task until the model calls no more tools."""
        self._messages.append({"role": "user", "content": task})
        for _ in range(most_turns):
            content = self._ask()
            results = [self._run(block) for block in content if block["type"] == "tool_use"]
            if not results:
                break
            self._messages.append({"role": "user", "content": results})
        return "".join(block["text"] for block in content if block["type"] == "text")

    def _ask(self) -> list[dict[str, Any]]:
        body = {
            "model": self._model,
            "max_tokens": 300,
            "temperature": 0,
            "system": "You are a coding agent. Read before you write.",
            "tools": SCHEMAS,
            "messages": self._messages,
        }
        reply = self._http.post("messages", json=body, headers=self._headers).raise_for_status()
        print(f"  {reply.headers.get('x-antiphon-reuse', 'no router of ours')}")
        content: list[dict[str, Any]] = reply.json()["content"]
        self._messages.append({"role": "assistant", "content": content})
        return content

    def _run(self, call: dict[str, Any]) -> dict[str, Any]:
        print(f"  {call['name']}({', '.join(f'{name}={value!r}' for name, value in call['input'].items())})")
        try:
            result = TOOLS[call["name"]](**call["input"])
        except (KeyError, TypeError) as error:
            result = f"{type(error).__name__}: {error}"
        return {"type": "tool_result", "tool_use_id": call["id"], "content": result}


def main() -> None:
    arguments = argparse.ArgumentParser(description="A coding agent by its base URL alone.")
    arguments.add_argument("--base-url", default="http://localhost:8000/v1")
    arguments.add_argument("--model", help="the server's first one if not given")
    arguments.add_argument("--session", default=str(uuid.uuid4()), help="its id; a new one if not given")
    arguments.add_argument("tasks", nargs="*", default=["Why does the test fail?", "Mend it."])
    given = arguments.parse_args()

    key = os.environ.get("ANTHROPIC_API_KEY", "none")
    with httpx.Client(base_url=given.base_url, headers={"x-api-key": key}, timeout=300) as http:
        model = given.model or http.get("models").raise_for_status().json()["data"][0]["id"]
        session = Session(http, model, given.session)
        for task in given.tasks:
            print(task)
            print(session.do(task, most_turns=8))


if __name__ == "__main__":
    main()
