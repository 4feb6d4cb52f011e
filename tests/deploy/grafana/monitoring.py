"""The dashboard, the alert rules, and the metrics that there are."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

from antiphon_server.router.metrics import Metrics

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "server" / "deploy" / "grafana" / "antiphon.json"
RULES = ROOT / "server" / "deploy" / "prometheus" / "rules.yml"
PROMETHEUS = RULES.with_name("prometheus.yml")
ENDINGS = ("_bucket", "_sum", "_count")
OWN = {"up", "ALERTS"}
"""Of Prometheus itself."""


def panels() -> list[dict[str, Any]]:
    """Those that show something."""
    every: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in every if panel["type"] != "row"]


def queries() -> list[str]:
    """Of all panels, with values for Grafana's variables."""
    return [
        target["expr"].replace("$__rate_interval", "1m").replace("$router", ".*")
        for panel in panels()
        for target in panel["targets"]
    ]


def rules() -> list[dict[str, Any]]:
    """All alerts."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def names(query: str) -> set[str]:
    """Metrics that a query reads.

    Raises:
        ValueError: it is not PromQL.
    """
    return {name for name, _ in _selected(promql.parse(query))}


def labels(query: str) -> set[tuple[str, str]]:
    """Metrics and labels by which a query selects them."""
    return set(_selected(promql.parse(query))) - {(name, "") for name in names(query)}


@dataclass(frozen=True)
class Family:
    """A metric's type and labels."""

    type: str
    labels: frozenset[str]


def families() -> dict[str, Family]:
    """The router's metrics by the names of their samples."""
    registry = Metrics().registry
    labelled = {
        name: frozenset(getattr(collector, "_labelnames", ()))
        for collector, names in registry._collector_to_names.items()
        for name in names
    }
    found: dict[str, Family] = {}
    for metric in registry.collect():
        family = Family(metric.type, labelled[metric.name])
        endings = {"histogram": ENDINGS, "counter": ("_total",)}.get(metric.type, ("",))
        found |= {metric.name + ending: family for ending in endings}
    return found


@cache
def of_vllm() -> frozenset[str]:
    """Samples' names of the installed vLLM; empty where there is none. Types are not known: all endings."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return frozenset()
    (folder,) = spec.submodule_search_locations
    places = [Path(folder) / "v1" / "metrics", Path(folder) / "distributed" / "kv_transfer"]
    sources = (path.read_text() for place in places for path in place.rglob("*.py"))
    bare = {name for source in sources for name in re.findall(r'"(vllm:[a-z_]+)"', source)}
    return frozenset(name + ending for name in bare for ending in ("", "_total", *ENDINGS))


def _selected(expr: Any) -> Iterator[tuple[str, str]]:
    """Names and labels of all selectors below an expression; a name comes with an empty label as well."""
    if isinstance(expr, promql.VectorSelector):
        name = expr.name or ""
        yield name, ""
        for matcher in expr.matchers.matchers:
            yield name, matcher.name
        return
    for part in ("expr", "lhs", "rhs", "vector_selector", "param"):
        below = getattr(expr, part, None)
        if below is not None:
            yield from _selected(below)
    for below in getattr(expr, "args", None) or ():
        yield from _selected(below)
