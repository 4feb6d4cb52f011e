"""Makes an OpenAI client tell the router which conversation each of its model calls belongs to.

>>> client = antiphon_openai.wrap(OpenAI(base_url="http://localhost:8000/v1"))  # doctest: +SKIP
>>> with antiphon.conversation():  # doctest: +SKIP
...     client.chat.completions.create(...)
"""

from __future__ import annotations

from antiphon import MissingDependencyError

try:
    import openai as _openai  # noqa: F401
except ImportError as error:
    raise MissingDependencyError(
        "antiphon_openai needs the openai package, which is not installed: pip install 'antiphon[openai]'"
    ) from error

from antiphon_openai._wrap import unwrap, wrap

__all__ = ["unwrap", "wrap"]
