"""For the tests of programs that use Antiphon: a router that is none, mocks, and assertions.

>>> with FakeRouter() as router:  # doctest: +SKIP
...     run_my_agent(OpenAI(base_url=router.base_url, api_key="none"))
...     assert_same_conversation(router.calls())
...     assert_history_kept(router.calls())

``import antiphon`` does not import it. Only :func:`mocked` and the fixtures in ``antiphon.testing.plugin``
need anything besides the SDK: ``pip install 'antiphon[testing]'``.
"""

from __future__ import annotations

from antiphon._outcome import Outcome
from antiphon.testing._assertions import (
    assert_distinct_turns,
    assert_ended,
    assert_history_kept,
    assert_same_conversation,
)
from antiphon.testing._mocked import mocked
from antiphon.testing._recorded import Recorded
from antiphon.testing._reply import tool_call
from antiphon.testing._router import FakeRouter

__all__ = [
    "FakeRouter",
    "Outcome",
    "Recorded",
    "assert_distinct_turns",
    "assert_ended",
    "assert_history_kept",
    "assert_same_conversation",
    "mocked",
    "tool_call",
]
