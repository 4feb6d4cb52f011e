"""An assistant's turn in the history is what the model generated, character for character."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_server.stack.models import CHATML

jinja2 = pytest.importorskip("jinja2")

from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: E402

ASK = "<|im_start|>assistant\n"
END = "<|im_end|>\n"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "hi"}

# As transformers sets it up.
_environment = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
)
_environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
_template = _environment.from_string(CHATML.read_text())


def render(messages: list[dict[str, Any]], *, ask: bool = False, **words: Any) -> str:
    return str(_template.render(messages=messages, add_generation_prompt=ask, **words))


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "function", "id": "1", "function": {"name": name, "arguments": arguments}}


def test_plain_conversation() -> None:
    messages = [{"role": "system", "content": "S"}, USER, {"role": "assistant", "content": "yes"}, USER]
    assert render(messages, ask=True) == (
        "<|im_start|>system\nS<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\nyes<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("role", ["system", "developer"])
def test_tools_stand_behind_the_system_prompt(role: str) -> None:
    text = render([{"role": role, "content": "S"}, USER], tools=[TOOL, TOOL])
    system, _, rest = text.partition(END)
    assert system.startswith("<|im_start|>system\nS\n\n# Tools")
    listed = system.split("<tools>\n")[1].split("\n</tools>")[0].splitlines()
    assert [json.loads(line) for line in listed] == [TOOL, TOOL]
    assert rest == "<|im_start|>user\nhi<|im_end|>\n"


def test_tools_without_system_prompt_make_one() -> None:
    text = render([USER], tools=[TOOL])
    assert text.startswith("<|im_start|>system\n# Tools")
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n")


@given(st.text())
def test_content_is_rendered_as_it_was_generated(content: str) -> None:
    prompt = render([USER], ask=True)
    assert render([USER, {"role": "assistant", "content": content}]) == prompt + content + END


@given(
    st.text(),
    st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.lists(st.booleans()), st.none())),
)
def test_a_call_is_rendered_as_the_engine_makes_the_model_write_it(
    content: str, arguments: dict[str, Any]
) -> None:
    """vLLM's grammar for forced hermes calls fixes all but the spacing inside the arguments."""
    body = json.dumps(arguments, ensure_ascii=False)
    generated = f'{content}<tool_call>\n{{"name": "weather", "arguments": {body}}}\n</tool_call>'
    message = {"role": "assistant", "content": content, "tool_calls": [call("weather", arguments)]}
    assert render([USER, message], tools=[TOOL]) == render([USER], tools=[TOOL], ask=True) + generated + END


def test_calls_in_parallel_follow_each_other_without_a_gap() -> None:
    """The engine's grammar for several calls has an empty separator."""
    message = {"role": "assistant", "content": None, "tool_calls": [call("a", {}), call("b", {"x": "é"})]}
    assert render([message]) == (
        '<|im_start|>assistant\n<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>'
        '<tool_call>\n{"name": "b", "arguments": {"x": "é"}}\n</tool_call><|im_end|>\n'
    )


def test_arguments_that_come_as_text_stay_as_they_are() -> None:
    message = {"role": "assistant", "tool_calls": [call("a", '{"x":1 }')]}
    assert '"arguments": {"x":1 }}\n' in render([message])


def test_tool_results_in_a_row_share_one_turn() -> None:
    results: list[dict[str, Any]] = [
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": [{"type": "text", "text": "2"}]},
    ]
    assert render([*results, USER]) == (
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n"
    )


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_is_kept_before_the_content(key: str) -> None:
    message = {"role": "assistant", key: "hm\n", "content": "yes"}
    assert render([message]) == "<|im_start|>assistant\n<think>hm\n</think>yes<|im_end|>\n"


def test_a_longer_history_extends_the_shorter_one() -> None:
    """No turn changes how an earlier one is rendered: the prefix stays, and with it its KV."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "S"},
        USER,
        {"role": "assistant", "content": "", "reasoning": "r", "tool_calls": [call("weather", {"a": 1})]},
        {"role": "tool", "content": "sun"},
        {"role": "assistant", "content": " It is sunny. "},
        {"role": "user", "content": [{"type": "text", "text": "and "}, {"type": "text", "text": "now?"}]},
        {"role": "assistant", "content": "no"},
    ]
    for length in range(1, len(messages)):
        ask = messages[length]["role"] == "assistant"
        shorter, longer = (
            render(messages[:n], tools=[TOOL], ask=ask and n == length) for n in (length, length + 1)
        )
        assert longer.startswith(shorter)
