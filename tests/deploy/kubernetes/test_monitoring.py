"""Alerts and autoscaling ask for metrics that there are."""

from __future__ import annotations

import re

import yaml

from deploy.kubernetes.objects import component, labels, named, of_kind, selects, templates
from deploy.kubernetes.render import MANIFESTS, ROOT, Manifest

DOCS = ROOT / "docs"
METRIC = re.compile(r"antiphon_\w+")


def documented() -> set[str]:
    """Names of the router's metrics."""
    rows = (DOCS / "router-reference.md").read_text().splitlines()
    return {row.split("`")[1] for row in rows if row.startswith("| `antiphon_")}


def test_alerts_are_those_of_the_other_deployments(full: list[Manifest]) -> None:
    rules = yaml.safe_load((MANIFESTS.parent / "prometheus" / "rules.yml").read_text())
    assert named(full, "PrometheusRule", "antiphon")["spec"]["groups"] == rules["groups"]


def test_jobs_and_roles_are_those_that_alerts_and_dashboard_ask_for(full: list[Manifest]) -> None:
    label = named(full, "ServiceMonitor", "antiphon-router")["spec"]["jobLabel"]
    jobs = {labels(named(full, "Service", "antiphon-router"))[label]}
    (endpoint,) = named(full, "ServiceMonitor", "antiphon-engines")["spec"]["endpoints"]
    (job, role) = endpoint["relabelings"]
    jobs.add(job["replacement"])
    rules = (MANIFESTS.parent / "prometheus" / "rules.yml").read_text()
    dashboard = (MANIFESTS.parent / "grafana" / "antiphon.json").read_text().replace('\\"', '"')
    asked = set(re.findall(r'job="(\w+)"', rules + dashboard))
    assert asked
    assert asked <= jobs
    (source,) = role["sourceLabels"]
    assert source == "__meta_kubernetes_service_label_app_kubernetes_io_component"
    assert role["targetLabel"] == "role"


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
