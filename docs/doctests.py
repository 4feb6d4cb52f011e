"""Examples in docstrings as code: without a fence, Markdown takes ``>>>`` for quotations in quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*(?:\n(?:>>>|\.\.\.).*)*", re.MULTILINE)
_PROMPT = re.compile(r"^(?:>>>|\.\.\.) ?", re.MULTILINE)


def fenced(docstring: str) -> str:
    """The docstring with each of its examples in a fence, and without prompts: for people to copy."""
    return _EXAMPLE.sub(lambda match: f"```python\n{_PROMPT.sub('', match[0])}\n```", docstring)


class Doctests(griffe.Extension):
    """Found by its base class. griffe calls it with everything that may have a docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        self.on_object(obj=mod)  # packages come by here alone
