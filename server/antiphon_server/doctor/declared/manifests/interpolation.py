"""Variables in compose files: ``$A``, ``${A}``, ``${A:-default}``, ``${A:?why}``, ``${A:+other}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_VARIABLE = re.compile(
    r"\$(?:(\$)|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:?[-?+])((?:[^${}]|\$\{[^{}]*\}|\$)*))?\})"
)


class MissingVariableError(ValueError):
    """``${NAME:?why}`` without a value."""


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """Texts in a document with their variables filled in; one that is not set is empty.

    Raises:
        MissingVariableError
    """
    if isinstance(value, dict):
        return {key: interpolated(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolated(each, variables) for each in value]
    return _text(value, variables) if isinstance(value, str) else value


def names_in(value: Any) -> set[str]:
    """Variables that texts in a document refer to."""
    return set(re.findall(r"\$\{?([A-Za-z_]\w*)", str(value)))


def _text(text: str, variables: Mapping[str, str]) -> str:
    def filled(found: re.Match[str]) -> str:
        if found[1]:
            return "$"
        name, how, word = found[2] or found[3], found[4] or "", found[5] or ""
        value = variables.get(name)
        there = bool(value) if how.startswith(":") else value is not None
        if how.endswith("-"):
            return value if there and value is not None else _text(word, variables)
        if how.endswith("+"):
            return _text(word, variables) if there else ""
        if how.endswith("?") and not there:
            raise MissingVariableError(
                f"variable {name} is not set: {_text(word, variables) or 'it is required'}"
            )
        return value or ""

    return _VARIABLE.sub(filled, text)


def variables_of(text: str) -> dict[str, str]:
    """An ``.env`` or environment file: ``NAME=value`` a line, with or without quotation marks."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not equals or line.lstrip().startswith(("#", ";")):
            continue
        value = value.strip()
        if value[:1] in ("'", '"') and (end := value.find(value[0], 1)) > 0:
            value = value[1:end]
        else:
            value = re.split(r"\s+#", value, maxsplit=1)[0].strip()
            value = "" if value.startswith("#") else value
        found[name.strip()] = value
    return found
