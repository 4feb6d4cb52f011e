"""Docstrings as a site: names without the roles of other tools, examples without flags of doctest, signatures
without private parameters."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):(?=<code>)")
_FLAG = re.compile(r'\s*(<span class="c1">)?\s*# doctest: \+SKIP(?(1)</span>)')
_PRIVATE = re.compile(r'\n\s*<span class="n">_\w+</span><span class="p">:</span>.*,</span>(?=\n)')
"""A parameter: a signature that does not fit a line has one a line."""


def on_page_content(html: str, **_: Any) -> str:
    """mkdocs calls it with each page."""
    return _FLAG.sub("", _ROLE.sub("", _PRIVATE.sub("", html))).replace("<code>~", "<code>")
