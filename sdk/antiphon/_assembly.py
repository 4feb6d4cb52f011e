"""The assistant's message as a client received it: whole, or in the pieces of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from antiphon._errors import TurnError
from antiphon._plain import get, plain

Message = dict[str, Any]
"""A chat message as JSON."""

_WHOLE = frozenset({"id", "index", "role", "type"})
"""Fields that a stream sends whole, maybe again and again."""

_PARSED: Any = {"parsed": True, "tool_calls": {"__all__": {"index": True, "function": {"parsed_arguments"}}}}
"""What openai's ``parse()`` and ``stream()`` add on the client's side; servers may refuse it."""


def message_of(reply: Any, choice: int = 0) -> Message:
    """The message of a chat completion, or the message itself, from models or JSON. ``choice``: its index.

    Raises:
        TurnError: it is neither, or has no such choice.
    """
    found = reply
    choices = get(reply, "choices")
    if isinstance(choices, Sequence):
        found = next((each for place, each in enumerate(choices) if _index(each, place) == choice), None)
        if found is None:
            raise TurnError(f"the reply has no choice {choice}: it has {len(choices)}, counted from 0")
        found = get(found, "message")
    if get(found, "role") != "assistant":
        raise TurnError(
            f"a {type(reply).__name__} is no reply of the assistant: pass a chat completion, its message, or "
            "the JSON of either; of a raw response parse() or json(); a stream goes through read() or aread()"
        )
    if "parsed" not in getattr(type(found), "model_fields", ()):
        message: Message = plain(found)
        return message
    message = plain(found, exclude=_PARSED)
    if message.get("tool_calls") is None:  # parse() sets it where none came
        message.pop("tool_calls", None)
    return message


def _index(choice: Any, place: int) -> int:
    index = get(choice, "index")
    return index if isinstance(index, int) else place


class Assembly:
    """Puts a stream's message together. ``choice``: index of the one that counts.

    ``finished``: its ``finish_reason`` has come. What comes afterwards (usage, say) is not of the message.
    """

    def __init__(self, choice: int = 0) -> None:
        self.finished = False
        self._choice = choice
        self._deltas: list[Message] = []

    def take(self, chunk: Any) -> bool:
        """Read a chunk, or an event of openai's ``stream()``; True for the one that finishes the message."""
        if self.finished:
            return False
        for choice in get(get(chunk, "chunk") or chunk, "choices") or ():
            if _index(choice, 0) == self._choice:
                self._deltas.append(plain(get(choice, "delta")) or {})
                self.finished = self.finished or bool(get(choice, "finish_reason"))
        return self.finished

    def message(self) -> Message:
        """The message as far as it came."""
        return assembled(self._deltas)


def assembled(deltas: Sequence[Mapping[str, Any]]) -> Message:
    """The message that a stream's deltas make up, fields that nobody knows included."""
    message = {"role": None, "content": None, **_joined("", deltas)}
    message["role"] = message["role"] or "assistant"
    calls = message.pop("tool_calls", None)
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    return message


def _call(call: Message) -> Message:
    """A call as a whole reply has it. Servers insist on its type and its arguments; streams may lack both."""
    call = {name: value for name, value in call.items() if name != "index"}
    if isinstance(function := call.get("function"), dict):
        call["type"] = call.get("type") or "function"
        function["arguments"] = function.get("arguments") or ""
    return call


def _joined(name: str, parts: Sequence[Any]) -> Any:
    """One field of its parts: text is concatenated, lists by ``index``, mappings by field; else the last."""
    if name in _WHOLE:
        return next((part for part in reversed(parts) if part != ""), "")
    if all(isinstance(part, str) for part in parts):
        return "".join(parts)
    if all(isinstance(part, Mapping) for part in parts):
        names = dict.fromkeys(name for part in parts for name in part)
        return {name: _present(name, [part.get(name) for part in parts]) for name in names}
    if all(isinstance(part, list) for part in parts):
        return _by_index(item for part in parts for item in part)
    return parts[-1]


def _present(name: str, parts: Iterable[Any]) -> Any:
    """A field of the parts that have it; null where all that came is null."""
    present = [part for part in parts if part is not None]
    return _joined(name, present) if present else None


def _by_index(items: Iterable[Any]) -> list[Any]:
    """Items without an index stand alone; they keep the place where they came."""
    groups: list[list[Any]] = []
    begun: dict[object, list[Any]] = {}
    for item in items:
        index = item.get("index") if isinstance(item, Mapping) else None
        group = begun.get(index)
        if index is None or group is None or _is_another(group[0], item):
            groups.append(group := [])
            if index is not None:
                begun[index] = group
        group.append(item)
    return [_joined("", group) for group in groups]


def _is_another(call: Mapping[str, Any], item: Mapping[str, Any]) -> bool:
    """Some servers give all calls the index 0: one with a name and an id of its own is another call."""
    first, other = call.get("id"), item.get("id")
    return bool(first and other and first != other and get(item.get("function"), "name"))
