"""Why a router sent turns not straight to decode, by its own counters."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 10.0
_SERIES = "antiphon_append_declined_total"


def declines(client: httpx.Client, router: str) -> dict[str, int]:
    """Turns by reason, since its start; none from a server that does not count them."""
    try:
        reply = client.get(f"{router}/metrics", timeout=TIMEOUT_S)
        families = list(text_string_to_metric_families(reply.text if reply.status_code == 200 else ""))
    except (httpx.HTTPError, ValueError):
        return {}
    samples = (sample for family in families for sample in family.samples if sample.name == _SERIES)
    return {sample.labels["reason"]: round(sample.value) for sample in samples}


def since(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What came in between, most frequent first."""
    more = {reason: count - before.get(reason, 0) for reason, count in after.items()}
    return dict(sorted(((r, n) for r, n in more.items() if n > 0), key=lambda item: -item[1]))
