"""The conversation on the program's OpenTelemetry spans, where the program has any."""

from __future__ import annotations

import sys
from typing import Any

from antiphon._conversation import Conversation

ATTRIBUTE = "gen_ai.conversation.id"
"""OpenTelemetry's name for it."""


def announce(conversation: Conversation) -> None:
    """Name the conversation on the span that is being recorded; one that is named there already stays.

    Adapters call it once per stamped call. OpenTelemetry is never imported for it. Never raises.
    """
    trace: Any = sys.modules.get("opentelemetry.trace")
    try:
        span = trace.get_current_span() if trace else None
        if span and span.is_recording() and ATTRIBUTE not in (getattr(span, "attributes", None) or ()):
            span.set_attribute(ATTRIBUTE, conversation.id)
    except Exception:  # a tracer of somebody else's must not cost a model call
        return
