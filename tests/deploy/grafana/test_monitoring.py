"""What the dashboard and the alerts ask for exists, is PromQL, and is what the operator's guide says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.compose.project import project, services
from deploy.grafana.monitoring import (
    DASHBOARD,
    OWN,
    PROMETHEUS,
    ROOT,
    RULES,
    families,
    labels,
    names,
    of_vllm,
    panels,
    queries,
    rules,
)

GUIDE = (ROOT / "docs" / "operating.md").read_text()
BY = re.compile(r"\bby \(([a-z, ]*)\)")
TARGETS = {"instance", "role", "job"}
"""Labels that Prometheus adds, by prometheus.yml."""
UNSHOWN = {
    "antiphon_tenant_turns_in_flight",  # is there with tenant_metrics only
    "antiphon_turns_admitted_total",  # turns_total with those that failed
}


def exprs() -> list[str]:
    return [*queries(), *(rule["expr"] for rule in rules())]


def test_every_query_reads_metrics_that_the_router_or_vllm_has() -> None:
    read = set().union(*map(names, exprs()))
    assert {name for name in read if not name.startswith("vllm:")} - OWN <= set(families())
    if not of_vllm():
        pytest.skip("vLLM is not installed: its names are not checked")
    assert {name for name in read if name.startswith("vllm:")} <= of_vllm()


def test_a_metric_that_is_not_there_would_be_found() -> None:
    assert names("sum(rate(antiphon_turns[5m])) / vllm:nixl_bytes") == {"antiphon_turns", "vllm:nixl_bytes"}
    assert "antiphon_turns" not in families()
    assert "vllm:nixl_bytes" not in of_vllm()
    with pytest.raises(ValueError, match="unclosed"):
        names("sum(rate(antiphon_turns_total[5m])")


def test_every_label_is_one_of_the_metrics() -> None:
    known = {name: {*family.labels, *TARGETS, "le"} for name, family in families().items()}
    for expr in exprs():
        read = names(expr) & set(known)
        assert [pair for pair in labels(expr) if pair[0] in known and pair[1] not in known[pair[0]]] == []
        for grouped in BY.findall(expr):
            for name in read:
                assert set(grouped.split(", ")) <= known[name], expr


def test_every_metric_of_the_router_is_shown() -> None:
    shown = set().union(*map(names, queries()))
    whole = {name for name in families() if not name.endswith(("_sum", "_count"))}
    assert whole - shown == UNSHOWN


def test_counters_are_shown_as_rates_and_gauges_are_not() -> None:
    for expr in queries():
        for name in names(expr) & set(families()):
            rated = re.search(rf"(rate|increase)\({name}\b", expr) is not None
            assert rated == (families()[name].type != "gauge"), expr


def test_panels_say_what_they_show_and_lie_side_by_side() -> None:
    cells = [
        (x, y)
        for panel in panels()
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in panels()}) == len(panels())
    assert len({panel["title"] for panel in panels()}) == len(panels())
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["fieldConfig"]["defaults"]["unit"]


def told() -> dict[str, str]:
    """Expressions of the guide's table, with their durations."""
    table = GUIDE.partition("## What to watch\n")[2].partition("\n## ")[0]
    found = {}
    for row in re.findall(r"^\| [^|]+ \| ((?:[^|]|\\\|)+) \|", table, re.MULTILINE):
        words, _, span = row.replace("\\|", "|").partition(" for ")
        found[words.replace("`", "").strip()] = span.replace(" min", "m").strip()
    return {words: span for words, span in found.items() if words not in ("expression", "---")}


def test_alerts_are_those_of_the_guide() -> None:
    alerts = {rule["expr"]: rule["for"] for rule in rules()}
    assert len(told()) > 8
    for expr, span in told().items():
        assert expr in alerts, expr
        assert not span or alerts[expr] == span, expr


def test_every_alert_says_what_to_do_and_where_that_is_written() -> None:
    anchors = {
        heading.lower().replace(",", "").replace(" ", "-")
        for heading in re.findall(r"^## (.*)$", GUIDE, re.MULTILINE)
    }
    for rule in rules():
        assert rule["alert"].startswith("Antiphon")
        assert rule["labels"]["severity"] in ("page", "ticket")
        file, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (ROOT / file).is_file()
        assert anchor in anchors
        assert len(rule["annotations"]["summary"]) < 110
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    assert sum(rule["labels"]["severity"] == "page" for rule in rules()) <= 4


def test_prometheus_itself_takes_the_rules_and_the_configuration() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("no promtool on this machine (Debian: prometheus)")
    for words in (["rules", str(RULES)], ["config", "--syntax-only", str(PROMETHEUS)]):
        done = subprocess.run([tool, "check", *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_go_off_when_they_should() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("no promtool on this machine (Debian: prometheus)")
    cases = Path(__file__).with_name("alerts.yml")
    done = subprocess.run(
        [tool, "test", "rules", str(cases)], capture_output=True, text=True, timeout=60, cwd=cases.parent
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tested = {
        one["alertname"]
        for test in yaml.safe_load(cases.read_text())["tests"]
        for one in test["alert_rule_test"]
    }
    assert tested == {rule["alert"] for rule in rules()}


def test_compose_mounts_them_where_they_are_looked_for() -> None:
    every = services("observability")
    mounted = {
        volume.split(":")[1]: volume.split(":")[0]
        for name in ("prometheus", "grafana")
        for volume in every[name]["volumes"]
    }
    config = yaml.safe_load(PROMETHEUS.read_text())
    assert [f"/etc/prometheus/{file}" for file in config["rule_files"]] == ["/etc/prometheus/rules.yml"]
    assert mounted["/etc/prometheus/rules.yml"].endswith(RULES.name)
    (job,) = config["scrape_configs"]
    (pattern,) = job["file_sd_configs"][0]["files"]
    (given,) = every["prometheus"]["configs"]
    assert Path(given["target"]).match(f"/etc/prometheus/{pattern}")
    assert given["source"] in project()["configs"]
    (provider,) = yaml.safe_load((DASHBOARD.parent / "dashboards.yaml").read_text())["providers"]
    folder = provider["options"]["path"]
    assert mounted[f"{folder}/antiphon.json"].endswith(DASHBOARD.name)
    assert every["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in mounted
    (source,) = yaml.safe_load((DASHBOARD.parent / "datasources.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
