"""A vLLM plug-in: tells the tiny model's thoughts (``<think>...</think>``, a grammar forces
them) from its words.

vLLM's own parsers look for tokens that the tiny tokenizer does not have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from vllm.reasoning import ReasoningParser, ReasoningParserManager

_THOUGHT = re.compile(r"<think>(?P<thought>.*?)</think>(?P<words>.*)", re.DOTALL)


class ThinkingParser(ReasoningParser):  # type: ignore[misc]
    """For whole replies; in streams thoughts stay with the words."""

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        return True  # the grammar holds from the first token on

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        return input_ids

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        found = _THOUGHT.fullmatch(model_output)
        return (found["thought"], found["words"]) if found else (None, model_output)

    def extract_reasoning_streaming(self, *args: Any, **kwargs: Any) -> None:
        return None


ReasoningParserManager.register_module("thinking", module=ThinkingParser)
