"""docs/reference/metrics-and-traces.md and the dashboard name every metric and attribute, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics import MetricWrapperBase

from miniclaw_sessions.service.gateway.metrics import Metrics
from miniclaw_sessions.service.gateway.telemetry import LoopDelay
from miniclaw_sessions.statistics import ManagerStatistics

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/metrics-and-traces.md").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads((ROOT / "config/grafana-dashboard.json").read_bytes())
PARTS = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
NAME = re.compile(r"\b(?:miniclaw|process)_[a-z0-9_]+")


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    made = Metrics(lambda: ManagerStatistics(sessions=0, store="memory:", store_state="ok"))
    LoopDelay(made)
    return made


def families(metrics: Metrics) -> dict[str, str]:
    """The kind of each metric, by its name on the page."""
    found = {family.name: family.type for family in metrics.registry.collect()}
    return {name + ("_total" if kind == "counter" else ""): kind for name, kind in found.items()}


def documented() -> dict[str, list[str]]:
    """The labels of each metric, as the page's table has them."""
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if NAME.match(line.removeprefix("| `"))]
    return {name: re.findall(r"`(\w+)`", row[1]) for row in rows for name in NAME.findall(row[0])}


def test_the_page_names_every_metric_and_no_other(metrics: Metrics) -> None:
    assert set(documented()) == set(families(metrics))


def test_the_page_names_the_labels_of_every_metric(metrics: Metrics) -> None:
    made = [one for one in vars(metrics).values() if isinstance(one, MetricWrapperBase)]
    labels = {f"{one._name}{'_total' if one._type == 'counter' else ''}": list(one._labelnames) for one in made}
    assert {name: found for name, found in documented().items() if name in labels} == labels
    assert all(not found for name, found in documented().items() if name not in labels)


def test_the_text_names_no_metric_that_there_is_not(metrics: Metrics) -> None:
    assert set(NAME.findall(PAGE)) <= set(families(metrics))


def test_the_page_names_every_attribute_of_a_span() -> None:
    source = (ROOT / "miniclaw_sessions/service/gateway/telemetry.py").read_text(encoding="utf-8")
    attributes = set(re.findall(r'"((?:gen_ai|http|miniclaw)\.[a-z_.]+)"', source))
    assert attributes
    assert attributes == set(re.findall(r"`((?:gen_ai|http|miniclaw)\.[a-z_.]+)`", PAGE)) - {"http.md"}


def test_the_dashboard_asks_for_what_there_is(metrics: Metrics) -> None:
    samples = {name.removesuffix("_total") + part for name, kind in families(metrics).items() for part in PARTS[kind]}
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len(panels) > 15
    for panel in panels:
        for target in panel["targets"]:
            assert NAME.findall(target["expr"]), panel["title"]
            assert set(NAME.findall(target["expr"])) <= samples, panel["title"]


def test_the_dashboard_groups_by_labels_that_there_are() -> None:
    labels = {label for found in documented().values() for label in found} | {"le"}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            for group in re.findall(r"by \(([^)]*)\)", target["expr"]):
                assert set(group.replace(" ", "").split(",")) <= labels, panel["title"]
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, panel["title"]
