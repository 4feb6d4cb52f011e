"""A tool call as the model wrote it, and the text of its result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon._errors import TurnError
from antiphon._plain import get, plain


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for. ``arguments``: the text that it wrote, nearly always JSON; of a custom
    tool, the input."""

    id: str
    name: str
    arguments: str

    def parsed(self) -> dict[str, Any]:
        """The arguments as an object, of one's own. No text at all is an empty one.

        Raises:
            TurnError: the model wrote no JSON object. Tell it so in the call's result, and it may mend it.
        """
        try:
            found = json.loads(self.arguments or "{}")
        except ValueError as error:
            raise TurnError(f"the arguments of {self} are no JSON ({error}): {self.arguments!r}") from None
        if not isinstance(found, dict):
            raise TurnError(f"the arguments of {self} are no JSON object: {self.arguments!r}")
        return found

    def __str__(self) -> str:
        return f"call {self.id!r} ({self.name})"


def calls_of(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    """The calls that an assistant's message asks for, in its order."""
    return tuple(_call(raw) for raw in message.get("tool_calls") or ())


def _call(raw: Any) -> ToolCall:
    tool = get(raw, "function") or get(raw, "custom")
    arguments = get(tool, "arguments") or get(tool, "input") or ""
    if not isinstance(arguments, str):  # some servers parse them
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(get(raw, "id") or "", get(tool, "name") or "", arguments)


def content_of(call: ToolCall, result: Any) -> Any:
    """What a tool's message says: text and content parts as they are, other data dumped compactly, once.

    Raises:
        TurnError: no JSON can be made of it.
    """
    if isinstance(result, str) or _are_parts(result):
        return plain(result)
    try:
        return json.dumps(result, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise TurnError(f"the result of {call} is no JSON ({error}): make text or plain data of it") from None


def _are_parts(result: Any) -> bool:
    """Content parts are named by their type: ``{"type": "text", "text": ...}``."""
    if not isinstance(result, list | tuple) or not result:
        return False
    kinds = [(part, part.get("type")) for part in result if isinstance(part, Mapping)]
    return len(kinds) == len(result) and all(isinstance(kind, str) and kind in part for part, kind in kinds)
