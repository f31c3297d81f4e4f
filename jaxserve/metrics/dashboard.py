"""The Grafana dashboard, as data: `grafana.json` beside this file is made of it (`scripts/dashboard`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxserve.metrics import catalogue as c
from jaxserve.metrics.catalogue import Metric

_SELECTED = {
    "model_name": 'model_name=~"$model_name"',
    "service_class": 'service_class=~"$service_class"',
    "context_tier": 'context_tier=~"$context_tier"',
}
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression and what its series are called."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: its title, the Grafana unit of its values, what it shows, and what it means."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def _select(metric: Metric, part: int = 0) -> str:
    """A metric's series (or one of a histogram's three), narrowed to what the dashboard's variables say."""
    return metric.series[part] + "{" + ",".join(_SELECTED[label] for label in metric.labels if label in _SELECTED) + "}"


def _rate(metric: Metric, part: int = 0) -> str:
    return f"rate({_select(metric, part)}[$__rate_interval])"


def _sum(metric: Metric, *by: str, part: int = 0) -> str:
    return f"sum by ({', '.join(by)}) ({_rate(metric, part)})" if by else f"sum({_rate(metric, part)})"


def _now(metric: Metric, *by: str) -> str:
    return f"sum by ({', '.join(by)}) ({_select(metric)})" if by else f"sum({_select(metric)})"


def _mean(metric: Metric) -> str:
    return f"{_sum(metric, part=1)} / {_sum(metric, part=2)}"


def _quantiles(title: str, metric: Metric, by: str = "") -> Panel:
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    queries = [
        Query(f"histogram_quantile({quantile}, sum by ({labels}) ({_rate(metric)}))", f"p{round(quantile * 100)}{legend}")
        for quantile in (0.5, 0.9, 0.99)
    ]
    return Panel(title, "s", tuple(queries), metric.help)


def _one(title: str, unit: str, metric: Metric, by: str = "") -> Panel:
    expression = (_now if metric.kind is c.Kind.GAUGE else _sum)(metric, *([by] if by else []))
    return Panel(title, unit, (Query(expression, f"{{{{{by}}}}}" if by else title.lower()),), metric.help)


ROWS: tuple[Row, ...] = (
    Row(
        "Load",
        (
            Panel(
                "Requests",
                "reqps",
                (
                    Query(_sum(c.REQUESTS_RECEIVED), "received"),
                    Query(_sum(c.REQUESTS_FINISHED), "finished"),
                    Query(_sum(c.REQUESTS_ABORTED), "aborted"),
                    Query(_sum(c.REQUESTS_REJECTED), "rejected"),
                ),
                "received == finished + aborted + rejected + active",
            ),
            Panel(
                "Tokens",
                "short",
                (
                    Query(_sum(c.PROMPT_TOKENS), "prompt"),
                    Query(_sum(c.GENERATION_TOKENS), "generated"),
                    Query(_sum(c.GOODPUT_TOKENS), "generated within the objective"),
                ),
                "Tokens a second.",
            ),
            Panel(
                "Sequences and requests now",
                "short",
                (
                    Query(_now(c.NUM_REQUESTS_RUNNING), "running"),
                    Query(_now(c.NUM_REQUESTS_WAITING), "waiting"),
                    Query(_now(c.REQUESTS_ACTIVE), "active requests"),
                ),
            ),
            Panel(
                "Share of requests in time",
                "percentunit",
                (
                    Query(
                        f"{_sum(c.REQUESTS_WITHIN_SLO, 'service_class')} / {_sum(c.E2E_LATENCY, 'service_class', part=2)}",
                        "{{service_class}}",
                    ),
                ),
                c.REQUESTS_WITHIN_SLO.help,
            ),
            _one("Rejected", "reqps", c.REQUESTS_REJECTED, "reason"),
            _one("Aborted", "reqps", c.REQUESTS_ABORTED, "reason"),
        ),
    ),
    Row(
        "Latency",
        (
            _quantiles("Time to first token", c.TIME_TO_FIRST_TOKEN),
            _quantiles("Time to first token by prompt length", c.TIME_TO_FIRST_TOKEN, "context_tier"),
            _quantiles("Inter-token latency", c.INTER_TOKEN_LATENCY),
            _quantiles("Whole request", c.E2E_LATENCY),
            _quantiles("Queue", c.QUEUE_TIME, "service_class"),
            _quantiles("Prefill", c.PREFILL_TIME),
            _quantiles("Decode", c.DECODE_TIME),
            Panel(
                "Tokens of a request",
                "short",
                (
                    Query(_mean(c.REQUEST_PROMPT_TOKENS), "prompt, mean"),
                    Query(_mean(c.REQUEST_GENERATION_TOKENS), "output, mean"),
                ),
            ),
            _one("Sequences that ended", "short", c.REQUEST_SUCCESS, "finished_reason"),
        ),
    ),
    Row(
        "Fleet",
        (
            Panel(
                "Replicas",
                "short",
                (Query(_now(c.FLEET_REPLICAS), "that take requests, of all front ends"),),
                c.FLEET_REPLICAS.help,
            ),
            Panel(
                "Load of the busiest replica",
                "short",
                (Query(f"max({_select(c.FLEET_IMBALANCE)})", "times the mean"),),
                c.FLEET_IMBALANCE.help,
            ),
            Panel(
                "What became of replicas and their requests",
                "short",
                (
                    Query(_sum(c.FLEET_RESUMED), "requests that went on elsewhere"),
                    Query(_sum(c.FLEET_REROUTED), "requests that another replica took"),
                    Query(_sum(c.FLEET_LOST), "replicas lost"),
                    Query(_sum(c.FLEET_HUNG), "replicas that hung"),
                    Query(_sum(c.FLEET_QUARANTINED), "replicas too slow"),
                ),
            ),
        ),
    ),
    Row(
        "KV cache",
        (
            Panel(
                "KV pages in use",
                "percentunit",
                (Query(f"max({_select(c.KV_CACHE_USAGE)})", "of the fullest server"),),
                c.KV_CACHE_USAGE.help,
            ),
            Panel(
                "Prefix cache hit rate",
                "percentunit",
                (Query(f"{_sum(c.PREFIX_CACHE_HITS)} / {_sum(c.PREFIX_CACHE_QUERIES)}", "share of prompt tokens"),),
                c.PREFIX_CACHE_HITS.help,
            ),
            Panel(
                "Preemptions",
                "short",
                (
                    Query(_sum(c.NUM_PREEMPTIONS), "preemptions"),
                    Query(_sum(c.RECOMPUTED_TOKENS), "tokens computed again"),
                    Query(_sum(c.SWAPPED_OUT_PAGES), "pages swapped out"),
                    Query(_sum(c.SWAPPED_IN_PAGES), "pages swapped in"),
                ),
                c.NUM_PREEMPTIONS.help,
            ),
        ),
    ),
    Row(
        "Steps",
        (
            Panel(
                "Phases of a turn",
                "percentunit",
                (Query(_sum(c.STEP_PHASE_SECONDS, "phase", part=1), "{{phase}}"),),
                "Share of the time that the engine's loop spends in each.",
            ),
            _quantiles("Step", c.STEP_SECONDS),
            Panel(
                "Batch",
                "short",
                (Query(_mean(c.BATCH_ROWS), "rows, mean"), Query(_mean(c.BATCH_TOKENS), "tokens, mean")),
            ),
            Panel(
                "Padding",
                "percentunit",
                (
                    Query(
                        f"{_sum(c.PADDING_TOKENS)} / ({_sum(c.PADDING_TOKENS)} + {_sum(c.BATCH_TOKENS, part=1)})",
                        "share of computed tokens",
                    ),
                ),
                c.PADDING_TOKENS.help,
            ),
            Panel(
                "Busiest expert of a layer",
                "short",
                (Query(f"max by (layer) ({_sum(c.EXPERT_TOKENS, 'layer', 'expert')})", "layer {{layer}}"),),
                c.EXPERT_TOKENS.help,
            ),
            Panel(
                "Compilation",
                "short",
                (
                    Query(_now(c.COMPILED_PROGRAMS), "programs"),
                    Query(_now(c.LATE_COMPILES), "compiled by steps"),
                    Query(_now(c.BUCKET_MISSES), "steps padded further"),
                ),
            ),
            Panel(
                "Scheduler's mistakes",
                "short",
                (
                    Query(_now(c.STEP_BUDGET_RAISES), "step budgets raised"),
                    Query(_now(c.QUEUE_ESTIMATE_MISSES), "waits misjudged"),
                    Query(_now(c.OVERLOADS), "overloads"),
                ),
            ),
            Panel(
                "Structured output",
                "short",
                (
                    Query(_sum(c.MASKED_ROWS), "masked rows a second"),
                    Query(_sum(c.FORCED_TOKENS), "forced tokens a second"),
                ),
            ),
            Panel("Adapters into slots", "short", (Query(_sum(c.ADAPTER_LOADS), "adapters a second"),)),
            Panel(
                "Memory of adapters",
                "bytes",
                (Query(_now(c.ADAPTER_DEVICE_BYTES), "slots, each device"), Query(_now(c.ADAPTER_HOST_BYTES), "host")),
            ),
            Panel("Waits for masks", "percentunit", (Query(_sum(c.MASK_SECONDS), "share of the engine's time"),)),
            Panel(
                "Guessed tokens",
                "short",
                (
                    Query(_sum(c.SPEC_DRAFTS), "rows that verify any, a second"),
                    Query(_sum(c.SPEC_DRAFT_TOKENS), "verified a second"),
                    Query(_sum(c.SPEC_ACCEPTED_TOKENS), "accepted a second"),
                ),
            ),
            _one("Accepted by position", "short", c.SPEC_ACCEPTED_PER_POS, "position"),
            Panel("Guessing", "percentunit", (Query(_sum(c.SPEC_SECONDS), "share of the engine's time"),)),
            _one("Weights read back", "short", c.WEIGHT_CHECKS),
        ),
    ),
    Row(
        "Batches",
        (
            _one("Batches by status", "short", c.BATCHES, "status"),
            _one("Requests of batches", "reqps", c.BATCH_REQUESTS, "fate"),
        ),
    ),
    Row(
        "Servers and processes",
        (
            _one("HTTP answers by status", "reqps", c.HTTP_REQUESTS, "status"),
            _one("HTTP answers by route", "reqps", c.HTTP_REQUESTS, "route"),
            _one("gRPC answers", "reqps", c.GRPC_REQUESTS, "status"),
            _one("Open streams", "short", c.ACTIVE_STREAMS, "surface"),
            _one("Resident memory", "bytes", c.PROCESS_MEMORY, "role"),
            Panel(
                "What should not happen",
                "short",
                (
                    Query(_now(c.PROCESS_RESTARTS, "role"), "restarts of {{role}}"),
                    Query(_now(c.ENGINE_HANGS), "engines that hung"),
                    Query(_now(c.TOKENIZER_FALLBACKS), "tokenizer fallbacks"),
                    Query(_now(c.USAGE_TOKENS_LOST), "tokens missing in the usage log"),
                    Query(f"1 - min({_select(c.ENGINE_UP)})", "engine down"),
                ),
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model, to be imported; it asks for the Prometheus data source."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        panels.append(_frame(len(panels) + 1, "row", row.title, 0, top, 24, 1) | {"collapsed": False, "panels": []})
        top += 1
        for place, panel in enumerate(row.panels):
            line, column = divmod(place, _COLUMNS)
            frame = _frame(len(panels) + 1, "timeseries", panel.title, column * _WIDTH, top + line * _HEIGHT, _WIDTH, _HEIGHT)
            panels.append(frame | _graph(panel))
        top += -(-len(row.panels) // _COLUMNS) * _HEIGHT
    return {
        "title": "jaxserve",
        "uid": "jaxserve",
        "tags": ["jaxserve"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _frame(number: int, kind: str, title: str, x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {"id": number, "type": kind, "title": title, "gridPos": {"x": x, "y": y, "w": width, "h": height}}


def _graph(panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "description": panel.description,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": source, "expr": query.expression, "legendFormat": query.legend}
            for place, query in enumerate(panel.queries)
        ],
    }


def _variables() -> Sequence[dict[str, Any]]:
    series = c.PROMPT_TOKENS.series[0]
    source = {"type": "prometheus", "uid": "${datasource}"}
    narrowing = [
        {
            "name": label,
            "type": "query",
            "datasource": source,
            "query": {"query": f"label_values({series}, {label})", "refId": label},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }
        for label in _SELECTED
    ]
    return [{"name": "datasource", "type": "datasource", "query": "prometheus"}, *narrowing]
