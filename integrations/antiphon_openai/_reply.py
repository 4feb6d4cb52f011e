"""What a reply tells about its conversation. It is read in passing: neither changed nor kept."""

from __future__ import annotations

import logging
from typing import Any

from antiphon._body import body_of
from antiphon._observe import Exchange, observe
from antiphon_openai._attempt import Attempt

_log = logging.getLogger("antiphon")


def observed(processed: dict[str, Any], now: float) -> None:
    """Observe a stamped call that succeeded. Never raises.

    ``processed``: what openai processes it with: ``options``, ``response``, ``stream``. ``now``: seconds.
    """
    try:
        attempt: Attempt | None = getattr(processed["options"].headers, "attempt", None)
        if attempt is None:
            return
        response, stream = processed["response"], processed["stream"]
        sent = response.request.headers
        exchange = Exchange(
            turn=sent.get(attempt.turn_header) if attempt.turn_header else None,
            headers=dict(response.headers),
            request=body_of(response.request),
            reply=None if stream else body_of(response),
            ttft=now - attempt.started if stream else None,
        )
        observe(attempt.conversation, exchange)
    except Exception:
        _log.debug("a call's reply was not observed", exc_info=True)
