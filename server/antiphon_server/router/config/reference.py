"""The router's reference, written from the code: every setting, metric and reason word.

``python -m antiphon_server.router.config.reference docs/router-reference.md`` writes it; a test compares.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from prometheus_client.metrics_core import Metric

from antiphon_server.router.config.options import Option, options
from antiphon_server.router.metrics import Metrics
from antiphon_server.router.plan.reasons import Path as TurnPath
from antiphon_server.router.plan.reasons import Reason

_OPENING = """# Router reference

Written from the code by `python -m antiphon_server.router.config.reference docs/router-reference.md`; do not
edit it. [operating.md](operating.md) says how to use it.

## Settings

Each is a flag of `antiphon router`, an environment variable and a key of the YAML file that `--config` or
`ANTIPHON_CONFIG` names. Flags win over the environment, the environment over the file. The key is the flag
without its dashes, with `_` for `-`. A list is a flag given several times, words with commas between, or a
YAML list. Seconds, bytes and counts, unless the text says otherwise. `antiphon check-config` explains every
fault.
"""


def render() -> str:
    """The whole document."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _OPENING
    for group, members in groupby(options(), key=lambda option: option.group):
        yield f"### {group}\n"
        yield "| flag | environment | default | |"
        yield "| --- | --- | --- | --- |"
        for option in members:
            yield _setting(option)
        yield ""
    yield "## Metrics\n"
    yield "At `/metrics`, for Prometheus. Counters are cumulative since the router's start.\n"
    yield "| name | type | labels | |"
    yield "| --- | --- | --- | --- |"
    for metric in _metrics():
        yield _metric(*metric)
    yield ""
    yield "## Paths and reasons\n"
    yield "`X-Antiphon-Reuse: path=...; matched=<tokens>; reason=...; prompt=<tokens>; held=<tokens>` on"
    yield "every turn's reply: `prompt`, and `held`, what decode held of the conversation, only where they"
    yield "are known. Path and reason are also labels of `antiphon_turns_total` and"
    yield "`antiphon_append_declined_total`.\n"
    yield "| path | |"
    yield "| --- | --- |"
    yield f"| `{TurnPath.APPEND}` | decode holds the prompt's beginning and computes what is new |"
    yield f"| `{TurnPath.REUSE}` | prefill pulls it from decode and computes what is new |"
    yield f"| `{TurnPath.COLD}` | prefill computes the whole prompt (decode where there is no hand-over) |"
    yield ""
    yield "| reason | |"
    yield "| --- | --- |"
    for reason in Reason:
        yield f"| `{reason}` | {reason.meaning} |"


def _setting(option: Option) -> str:
    default = f"`{option.default}`" if option.default is not None else ""
    words = f" ({', '.join(option.choices)})" if option.choices else ""
    return f"| `{option.flag}` | `{option.variable}` | {default} | {_cell(option.description)}{words} |"


def _metrics() -> Iterator[tuple[Metric, tuple[str, ...]]]:
    registry = Metrics().registry
    labels = {
        name: tuple(getattr(collector, "_labelnames", ()))
        for collector, names in registry._collector_to_names.items()
        for name in names
    }
    for metric in sorted(registry.collect(), key=lambda metric: metric.name):
        yield metric, labels.get(metric.name, ())


def _metric(metric: Metric, labels: tuple[str, ...]) -> str:
    name = metric.name + ("_total" if metric.type == "counter" else "")
    said = ", ".join(f"`{label}`" for label in labels)
    return f"| `{name}` | {metric.type} | {said} | {_cell(metric.documentation)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render())
