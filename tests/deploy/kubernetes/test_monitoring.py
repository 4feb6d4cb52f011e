"""Alerts and autoscaling ask for metrics that there are."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from deploy.kubernetes.objects import component, labels, named, of_kind, selects, templates
from deploy.kubernetes.render import MANIFESTS, Manifest

DOCS = Path(__file__).parents[3] / "docs"
METRIC = re.compile(r"antiphon_\w+")


def documented() -> set[str]:
    """Names of the router's metrics."""
    rows = (DOCS / "router-reference.md").read_text().splitlines()
    return {row.split("`")[1] for row in rows if row.startswith("| `antiphon_")}


def advised() -> dict[str, str | None]:
    """How long each expression has to hold, of the guide's table of alerts."""
    found: dict[str, str | None] = {}
    for row in (DOCS / "operating.md").read_text().splitlines():
        if not row.startswith("|") or "antiphon_" not in row or row.startswith("| `"):
            continue
        expression = row.split(" | ")[1]
        lasting = re.search(r" for (\d+) min$", expression)
        text = " ".join(re.sub(r" for \d+ min$", "", expression).replace("`", "").split())
        found[text.replace("\\|", "|")] = f"{lasting[1]}m" if lasting else None
    return found


def test_alerts_are_those_of_the_guide(full: list[Manifest]) -> None:
    (group,) = named(full, "PrometheusRule", "antiphon")["spec"]["groups"]
    rules = {" ".join(rule["expr"].split()): rule.get("for") for rule in group["rules"]}
    assert rules == advised()
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) == 9


def test_every_metric_that_is_asked_for_is_the_routers(full: list[Manifest]) -> None:
    asked = set(METRIC.findall(str(named(full, "PrometheusRule", "antiphon"))))
    asked |= set(METRIC.findall(str(of_kind(full, "HorizontalPodAutoscaler"))))
    adapter = (MANIFESTS / "components" / "hpa" / "prometheus-adapter.yaml").read_text()
    asked |= set(METRIC.findall(adapter))
    assert asked <= documented()


def test_the_autoscalers_metric_is_the_one_that_the_adapter_shows(full: list[Manifest]) -> None:
    scaler = named(full, "HorizontalPodAutoscaler", "antiphon-router")["spec"]
    adapter = yaml.safe_load((MANIFESTS / "components" / "hpa" / "prometheus-adapter.yaml").read_text())
    (rule,) = adapter["rules"]["custom"]
    names = [metric["pods"]["metric"]["name"] for metric in scaler["metrics"] if metric["type"] == "Pods"]
    assert names == [rule["name"]["as"]]
    assert re.fullmatch(rule["name"]["matches"], names[0])
    assert rule["seriesQuery"].startswith(f"{names[0]}{{")
    target = named(full, scaler["scaleTargetRef"]["kind"], scaler["scaleTargetRef"]["name"])
    assert "replicas" not in target["spec"]
    assert "cpu" in templates(target)[0]["spec"]["containers"][0]["resources"]["requests"]


def test_monitors_find_services_by_ports_that_they_have(full: list[Manifest]) -> None:
    seen: set[str] = set()
    for monitor in of_kind(full, "ServiceMonitor"):
        found = [s for s in of_kind(full, "Service") if selects(monitor["spec"]["selector"], labels(s))]
        for service in found:
            ports = {port["name"] for port in service["spec"]["ports"]}
            assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports
            seen.add(component(service))
    assert seen == {"router", "prefill", "decode"}
