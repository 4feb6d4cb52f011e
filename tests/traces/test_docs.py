from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon_server.traces.read import FORMATS, read

TEXT = (Path(__file__).parents[2] / "docs" / "traces.md").read_text()
SECTIONS = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE))
EXAMPLES = [
    pytest.param(name, example, id=f"{name}-{number}")
    for name, section in SECTIONS.items()
    for number, example in enumerate(re.findall(r"```json\n(.*?)```", section, re.DOTALL))
]


def test_every_format_is_described() -> None:
    assert set(SECTIONS) == set(FORMATS)
    assert all(f"[`{name}`](#{name})" in TEXT for name in FORMATS)


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_example_is_read(name: str, example: str, tmp_path: Path) -> None:
    path = tmp_path / "example.json"
    path.write_text(example)
    trace = read([path])
    assert trace.format == name
    call = trace.conversations[0].calls[0]
    assert call.prompt > 0
    assert call.answer > 0
    assert not any("could not" in note or "left out" in note for note in trace.notes)
    assert read([path], format=name) == trace


def test_each_format_has_an_example() -> None:
    assert {param.values[0] for param in EXAMPLES} == set(FORMATS)


def test_own_client_logs_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", SECTIONS["openai_log"], re.DOTALL)
    message = {"role": "assistant", "content": "Three."}
    reply = {
        "id": "1",
        "object": "chat.completion",
        "created": 1767225600,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 14, "completion_tokens": 3, "total_tokens": 17},
    }
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=reply))

    class Answered(httpx.Client):
        def __init__(self, **given: Any) -> None:
            super().__init__(transport=transport, **given)

    monkeypatch.setattr(httpx, "Client", Answered)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(code, scope)
    asked = [{"role": "user", "content": "Which files are there?"}]
    with scope["log"], scope["client"] as client:
        answer = client.chat.completions.create(model="m", messages=asked)
    assert answer.choices[0].message.content == "Three."
    (conversation,) = read([tmp_path / "calls.jsonl"]).conversations
    (call,) = conversation.calls
    assert (call.prompt, call.answer, call.model) == (14, 3, "m")
    assert call.history == tuple(asked)
    assert call.at == 0.0
    assert call.seconds is not None
