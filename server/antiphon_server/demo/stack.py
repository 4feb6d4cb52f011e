"""The stack that a demo starts."""

from __future__ import annotations

import json

from antiphon_server.stack.settings import Override, StackSettings

# A weak model that may put white space between tokens of JSON puts nothing else.
_TIGHT = ("--structured-outputs-config", json.dumps({"backend": "xgrammar", "disable_any_whitespace": True}))


def settings(model: str, port: int) -> StackSettings:
    """One prefill, one decode, a router; prefill keeps no prefix cache of its own."""
    tight = Override(flags=_TIGHT)
    return StackSettings(
        model=model, port=port, prefill_cache=False, overrides={"prefill": tight, "decode": tight}
    )
