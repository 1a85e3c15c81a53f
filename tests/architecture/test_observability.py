"""Alert rules, dashboard and documentation use only metrics that exist, with their labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from herder.app.metrics.catalogue import FAMILIES, TOPICS
from herder.engine.control.metric_family import MetricFamily, MetricType
from tools import metrics_page

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "deploy/observability/alerts.yaml").read_text())
DASHBOARD = json.loads((ROOT / "deploy/observability/dashboard.json").read_text())
TARGET_LABELS = {"job", "instance"}
FUNCTIONS = {"rate", "increase", "histogram_quantile", "time", "topk", "sum", "min", "max", "absent", "clamp_min"}
KEYWORDS = {"and", "or", "unless", "bool"}
OF_PROMETHEUS = {"up": MetricFamily("up", MetricType.GAUGE, "")}
_PARTS = ("_bucket", "_count", "_sum")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?\s*(\()?")
_MATCHER = re.compile(r"\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*\"([^\"]*)\"\s*")


def problems(expression: str) -> Iterator[str]:
    """What is wrong with an expression: of PromQL, no more than rules and dashboard use is understood."""
    if expression.count("(") != expression.count(")"):
        yield "unbalanced parentheses"
    grouped = [label.strip() for group in _GROUPING.findall(expression) for label in group.split(",")]
    known = set(TARGET_LABELS)
    text = _GROUPING.sub(" ", expression)
    called = ""
    for name, matchers, opening in _SELECTOR.findall(re.sub(r"\b\d[\w.]*", " ", _without_spans(text))):
        if opening:
            called = name
            if name not in FUNCTIONS:
                yield f"{name}: unknown function"
            continue
        if name in KEYWORDS:
            continue
        family, part = _family(name)
        if family is None:
            yield f"{name}: unknown metric"
            continue
        known |= {*family.labels, *({"le"} if part == "_bucket" else ())}
        yield from _selector_problems(family, name, matchers)
        is_counter = family.type is MetricType.COUNTER or bool(part)
        if (called in ("rate", "increase")) != is_counter and name != "up":
            yield f"{name}: rate and increase are for counters, and counters need one of them"
        if family.type is MetricType.HISTOGRAM and not part:
            yield f"{name}: is a histogram; use its _bucket, _count or _sum"
    yield from (f"{label}: no metric of the expression has this label" for label in grouped if label not in known)
    if "histogram_quantile" in expression and "le" not in grouped:
        yield "histogram_quantile needs the label le"


def _without_spans(text: str) -> str:
    return re.sub(r"\[[^]]*\]", " ", text)


def _family(name: str) -> tuple[MetricFamily | None, str]:
    found = (FAMILIES | OF_PROMETHEUS).get(name)
    if found is not None:
        return found, ""
    part = next((each for each in _PARTS if name.endswith(each)), "")
    base = FAMILIES.get(name.removesuffix(part))
    return (base, part) if part and base is not None and base.type is MetricType.HISTOGRAM else (None, "")


def _selector_problems(family: MetricFamily, name: str, matchers: str) -> Iterator[str]:
    inside = matchers.strip("{}")
    found = [_MATCHER.fullmatch(each) for each in inside.split(",") if inside]
    labels = {match[1] for match in found if match is not None}
    if None in found:
        yield f"{name}: cannot read {matchers}"
    yield from (f"{name}: no label {each}" for each in labels - {*family.labels, *TARGET_LABELS})
    if not name.startswith("herder_") and "job" not in labels:
        yield f"{name}: other programs have it too; select the job"


def alerts() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def targets() -> list[tuple[str, str]]:
    return [(panel["title"], each["expr"]) for panel in DASHBOARD["panels"] for each in panel.get("targets", ())]


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_alerts_use_metrics_that_exist(rule: dict[str, Any]) -> None:
    assert [*problems(rule["expr"])] == []
    assert rule["labels"]["severity"] in ("critical", "warning")
    used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    grouped = {label.strip() for group in _GROUPING.findall(rule["expr"]) for label in group.split(",")}
    assert used <= (grouped or TARGET_LABELS), "aggregation removes the labels that the summary uses"


@pytest.mark.parametrize(("title", "expression"), targets(), ids=[title for title, _ in targets()])
def test_panels_use_metrics_that_exist(title: str, expression: str) -> None:
    assert [*problems(expression)] == [], title
    assert 'job=~"$job"' in expression


@pytest.mark.parametrize("path", ["deploy/service-monitor.yaml", "charts/herder/templates/servicemonitor.yaml"])
def test_scrapes_keep_the_labels_of_clusters(path: str) -> None:
    """Prometheus would rename the label `namespace` of the metrics of clusters, which alerts group by."""
    assert "honorLabels: true" in (ROOT / path).read_text()


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_every_topic_is_on_the_dashboard() -> None:
    shown = " ".join(expression for _, expression in targets())
    assert [topic.title for topic in TOPICS if not any(family.name in shown for family in topic.families)] == []


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("herder_nonsense > 0", "herder_nonsense: unknown metric"),
        ('herder_clusters{phase="x"} > 0', "herder_clusters: no label phase"),
        ("sum by (controller) (herder_clusters)", "controller: no metric of the expression has this label"),
        ("rate(herder_clusters[5m])", "herder_clusters: rate and increase are for counters"),
        ("herder_operations_total > 0", "herder_operations_total: rate and increase are for counters"),
        ("workqueue_depth > 1", "workqueue_depth: other programs have it too"),
        ("rated(herder_operations_total[5m])", "rated: unknown function"),
        ("sum(herder_clusters", "unbalanced parentheses"),
        ("histogram_quantile(0.9, rate(herder_store_commit_duration_seconds_bucket[5m]))", "needs the label le"),
        ("herder_clusters_bucket", "herder_clusters_bucket: unknown metric"),
    ],
)
def test_the_check_finds_mistakes(expression: str, problem: str) -> None:
    assert any(problem in found for found in problems(expression)), [*problems(expression)]


def test_the_page_of_metrics_is_up_to_date() -> None:
    page = metrics_page.PAGE.path.read_text()
    assert metrics_page.PAGE.rendered(page) == page, "python -m tools.metrics_page"


def test_alerts_are_documented() -> None:
    page = (ROOT / "docs/observability.md").read_text()
    documented = set(re.findall(r"^\| `(Herder\w+)` \|", page, re.MULTILINE))
    assert documented == {rule["alert"] for rule in alerts()}


def test_names_and_labels_follow_the_conventions() -> None:
    """Labels of users and objects would create a series for each; see docs/metrics.md for the only exceptions."""
    for family in FAMILIES.values():
        assert family.name.endswith("_total") == (family.type is MetricType.COUNTER), family.name
        assert family.help
        if family.name != "herder_certificate_expiry_timestamp_seconds":
            assert not {"user", "machine", "object", "token", "path"} & set(family.labels)
