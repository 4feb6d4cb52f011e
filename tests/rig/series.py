"""One figure of a Prometheus page, read often: by a client that is kept, and without parsing the page."""

from __future__ import annotations

import re

import httpx

# Making a client costs more than the reading; and a page may be of an engine that is killed next.
_CLIENT = httpx.Client(timeout=60, trust_env=False, headers={"connection": "close"})
_SAMPLE = re.compile(r"^(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)", re.MULTILINE)


def value(url: str, name: str, **labels: str) -> float:
    """Sum of a series' samples that have these labels, as the server at ``url`` says; 0 if there is none."""
    page = _CLIENT.get(f"{url}/metrics").raise_for_status().text
    wanted = [f'{label}="{word}"' for label, word in labels.items()]
    return sum(
        float(sample["value"])
        for sample in _SAMPLE.finditer(page)
        if sample["name"] == name and all(one in (sample["labels"] or "") for one in wanted)
    )
