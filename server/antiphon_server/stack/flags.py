"""vLLM's command line as data: long names, one value a flag, ``--kv-transfer-config`` read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_SHORT = {"-tp": "--tensor-parallel-size", "-dp": "--data-parallel-size", "-pp": "--pipeline-parallel-size"}
_SHORT |= {"-dcp": "--decode-context-parallel-size", "-pcp": "--prefill-context-parallel-size"}
_SHORT |= {"-dpl": "--data-parallel-size-local", "-n": "--nnodes"}
TRANSFER = "--kv-transfer-config"


@dataclass(frozen=True, slots=True)
class Flags:
    """``values``: by long name without dashes in front, the last one given wins; a switch has ``""``.
    ``many``: every value of flags that repeat. ``transfer``: the KV transfer configuration, None where there
    is none; ``malformed``: why it cannot be read."""

    values: Mapping[str, str] = field(default_factory=dict)
    many: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    transfer: Mapping[str, Any] | None = None
    malformed: str | None = None
    words: tuple[str, ...] = ()

    def get(self, name: str) -> str | None:
        """Value of ``name`` (without dashes in front), None where it is not given."""
        return self.values.get(name)

    def count(self, name: str, default: int) -> int:
        """The same as a number of 1 or more; ``default`` where it is none, which vLLM refuses."""
        value = self.values.get(name, "")
        return int(value) if value.isdecimal() and int(value) > 0 else default

    def all(self, name: str) -> tuple[str, ...]:
        """Each value given, in order."""
        return self.many.get(name, ())


def after_entry(argv: Sequence[str]) -> tuple[str, ...]:
    """What follows ``python -m module`` and, with vLLM's own command, ``serve``."""
    words = tuple(argv)
    return words[words.index("serve") + 1 :] if "serve" in words[:5] else words[3:]


def read_flags(words: Sequence[str]) -> Flags:
    """What follows the server's entry point. Words that are no flags are kept in :attr:`Flags.words`."""
    values: dict[str, str] = {}
    many: dict[str, list[str]] = {}
    loose: list[str] = []
    name: str | None = None
    taken = True
    for word in words:
        written, equals, value = word.partition("=")
        written = _SHORT.get(written, written)
        if written.startswith("--") and len(written) > 2:
            # vLLM takes underscores for dashes, but not behind the first dot of a nested value.
            head, dot, rest = written[2:].partition(".")
            name = head.replace("_", "-") + dot + rest
            taken = bool(equals)
            values[name] = value
            many.setdefault(name, []).extend([value] if equals else [])
        elif name is not None and not taken:
            values[name] = word
            many[name].append(word)
            taken = True
        elif name is not None and many.get(name) and name in _SEVERAL:
            many[name].append(word)
        else:
            loose.append(word)
    transfer, malformed = _transfer(values)
    return Flags(values, {key: tuple(each) for key, each in many.items()}, transfer, malformed, tuple(loose))


_SEVERAL = ("served-model-name", "middleware", "api-key")


def _transfer(values: Mapping[str, str]) -> tuple[Mapping[str, Any] | None, str | None]:
    whole = values.get(TRANSFER[2:])
    read: dict[str, Any] = {}
    if whole is not None:
        try:
            found = json.loads(whole)
        except json.JSONDecodeError as error:
            return None, f"it is not JSON ({error.msg} at character {error.pos})"
        if not isinstance(found, dict):
            return None, f"it holds a {type(found).__name__}, not an object"
        read |= found
    prefix = TRANSFER[2:] + "."
    nested = {key[len(prefix) :]: value for key, value in values.items() if key.startswith(prefix)}
    for path, value in nested.items():
        *parents, last = path.split(".")
        place = read
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = _scalar(value)
    return (read, None) if whole is not None or nested else (None, None)


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
