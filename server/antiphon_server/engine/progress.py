"""NIXL's progress thread, told to sleep between events.

NIXL's Python API (1.5.1, ``_api.py``) sets the thread's poll timeout to 0, so each agent keeps a core busy
from its first moment, idle or not: with prefill and decode on a laptop, two cores. Its C++ side takes a
timeout (``pthrDelay``) and wakes on events all the same. Measured on an idle agent: 1.00 of a core at 0 ms,
0.022 at 1 ms, 0.007 at 10 ms.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

POLL_US = 5_000


@contextlib.contextmanager
def patient(agent_class: Any, poll_us: int = POLL_US) -> Iterator[None]:
    """Agents of ``agent_class`` made inside wait up to ``poll_us`` microseconds for an event.

    Does nothing where NIXL's bindings look otherwise than in the version this was written for.
    """
    bindings: Any = getattr(sys.modules.get(agent_class.__module__), "nixlBind", None)
    config: Any = getattr(bindings, "nixlAgentConfig", None)
    if config is None:
        yield
        return

    def assign(self: Any, name: str, value: Any) -> None:
        config.__setattr__(self, name, max(value, poll_us) if name == "pthrDelay" else value)

    bindings.nixlAgentConfig = type("PatientAgentConfig", (config,), {"__setattr__": assign})
    try:
        yield
    finally:
        bindings.nixlAgentConfig = config
