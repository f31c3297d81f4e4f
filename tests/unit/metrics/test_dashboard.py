"""Every expression of the dashboard against the catalogue."""

import json
import re
from pathlib import Path

import pytest

from jaxserve.metrics import dashboard as module
from jaxserve.metrics.catalogue import CATALOGUE, Kind
from jaxserve.metrics.dashboard import dashboard

SHIPPED = json.loads((Path(module.__file__).parent / "grafana.json").read_text())
PANELS = [panel for panel in SHIPPED["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
SERIES = {series: metric for metric in CATALOGUE for series in metric.series}

# A selector with its labels and, where it is a range, the range.
SELECTOR = re.compile(r"(jaxserve:\w+)(\{[^}]*\})(\[[^]]*\])?")
WORDS = {"sum", "by", "rate", "histogram_quantile", "min", "max", "le"}


def labels_of(metric):
    return {*metric.labels, *(["le"] if metric.kind is Kind.HISTOGRAM else [])}


def test_what_is_shipped_is_what_the_code_makes():
    assert json.loads(json.dumps(dashboard())) == SHIPPED, "run scripts/dashboard"


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_what_there_is(expression):
    assert expression.count("(") == expression.count(")")
    selectors = SELECTOR.findall(expression)
    assert selectors
    assert len(selectors) == expression.count("jaxserve:"), "every metric is narrowed"
    known = []
    for series, matchers, span in selectors:
        metric = SERIES[series]
        known.append(labels_of(metric))
        narrowed = set(re.findall(r'(\w+)=~"\$\1"', matchers))
        assert narrowed == set(metric.labels) & {"model_name", "service_class", "context_tier"}
        assert matchers.count("=") == len(narrowed)
        if span:
            assert span == "[$__rate_interval]"
            assert metric.kind is not Kind.GAUGE, "a gauge has no rate"
        else:
            assert metric.kind is not Kind.HISTOGRAM
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
    assert all(grouped <= labels for labels in known)
    rest = re.findall(r"[a-z_]\w*", re.sub(r"by \([^)]*\)", "by", SELECTOR.sub("", expression)))
    assert set(rest) <= WORDS
    if "histogram_quantile" in expression:
        assert "le" in grouped
        assert "_bucket" in expression


def test_legends_name_labels_that_their_series_have():
    for panel in PANELS:
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert all(f"{name}" in target["expr"].partition("by (")[2].partition(")")[0] for name in named), target


def test_every_metric_is_shown():
    shown = {SERIES[series].name for expression in EXPRESSIONS for series, _, _ in SELECTOR.findall(expression)}
    assert {metric.name for metric in CATALOGUE} == shown


def test_panels_do_not_overlap():
    taken: set[tuple[int, int]] = set()
    numbers = [panel["id"] for panel in SHIPPED["panels"]]
    assert len(numbers) == len(set(numbers))
    for panel in SHIPPED["panels"]:
        frame = panel["gridPos"]
        cells = {(frame["x"] + x, frame["y"] + y) for x in range(frame["w"]) for y in range(frame["h"])}
        assert not cells & taken
        assert frame["x"] + frame["w"] <= 24
        taken |= cells


def test_variables_are_the_labels_that_expressions_use():
    used = set(re.findall(r'=~"\$(\w+)"', " ".join(EXPRESSIONS)))
    variables = {one["name"]: one for one in SHIPPED["templating"]["list"]}
    assert {*used, "datasource"} == variables.keys()
    for name in used:
        found = re.fullmatch(r"label_values\((\S+), (\w+)\)", variables[name]["query"]["query"])
        assert found is not None
        series, label = found.groups()
        assert label == name
        assert label in SERIES[series].labels
