"""A report on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rich import box
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table

from jaxserve.errors import ErrorCode
from jaxserve.planner.units import dollars, milliseconds, plural
from jaxserve.simulation.calibrate import Fit
from jaxserve.simulation.ledger import ENDS
from jaxserve.simulation.report import Report, Service
from jaxserve.simulation.scaling import parse_scaling
from jaxserve.workload.stats import Percentiles

_WORST = 5  # steps shown
_SHOWN = 16  # replicas, at most
_REFUSALS = MappingProxyType(
    {
        ErrorCode.QUEUE_FULL: "for a full queue",
        ErrorCode.OVERLOADED: "for a queue too long to start in time",
        ErrorCode.DEADLINE_EXCEEDED: "after waiting in vain",
    }
)


def show(report: Report, console: Console) -> None:
    console.print(_summary(report))
    if report.fit is not None:
        console.print(_fit(report.fit))
    console.print(_latency(report.all))
    groups = [
        ("tenant", report.tenants),
        ("context tier", report.tiers),
        ("class", report.classes),
    ]
    for name, services in groups:
        if len(services) > 1:
            console.print(_services(name, services))
    console.print(_engines(report))
    if report.usage.decisions:
        console.print(_decisions(report))
    if 1 < len(report.replicas) <= _SHOWN:
        console.print(_replicas(report))


def _summary(report: Report) -> RenderableType:
    replica, service, slo = report.scenario.replica, report.all, report.scenario.slo
    ends = ", ".join(f"{getattr(service, end):,} {end.replace('_', ' ')}" for end in ENDS if getattr(service, end))
    rows = Table.grid(padding=(0, 2))
    rows.add_row("fleet", f"{_size(report)} of {replica.model} on {replica.tp} x {report.hardware}")
    if len(report.replicas) > 1:
        balance = report.balance
        rows.add_row(
            "routing",
            f"{replica.router}: the busiest replica has {balance.requests:.2f} times the mean's requests, "
            f"{balance.tokens:.2f} times its tokens",
        )
    rows.add_row("requests", f"[bold]{service.received:,}[/bold] in {report.seconds:,.1f} s of virtual time: {ends}")
    if report.refusals:
        kinds = ", ".join(f"{count:,} {_REFUSALS[code]}" for code, count in report.refusals.items())
        rows.add_row("refusals", f"{kinds}; each told when to come back, which they did {report.retries:,} times")
    if report.failovers:
        lost = report.engines.tokens_lost
        rows.add_row("failures", f"{plural(report.failovers, 'request')} went on in another replica, {lost:,} tokens lost")
    if report.jain is not None:
        rows.add_row("fairness", f"Jain's index of token-work between competing tenants {report.jain:.3f}")
    rows.add_row("output", f"{service.output_tokens_per_s:,.0f} tokens/s")
    rows.add_row(
        "goodput",
        f"[bold green]{service.goodput_tokens_per_s:,.0f} tokens/s[/bold green]: {service.slo_share:.1%} of requests had a TTFT "
        f"within {slo.slo_ttft_ms:g} ms and a mean ITL within {slo.slo_itl_ms:g} ms",
    )
    used = report.usage
    rows.add_row(
        "GPUs",
        f"{used.gpu_hours:,.2f} hours, {dollars(used.usd)}: {dollars(used.usd_per_m_tokens)} a million output tokens"
        if used.usd
        else f"{used.gpu_hours:,.2f} hours",
    )
    return Panel(rows, title="Simulation", title_align="left", box=box.ROUNDED, expand=False)


def _size(report: Report) -> str:
    used, scaling = report.usage, parse_scaling(report.scenario.replica.autoscale)
    if scaling is None:
        return plural(report.scenario.replica.replicas, "replica")
    return f"{scaling.min_replicas} to {scaling.max_replicas} replicas, {used.mean_replicas:.2f} in the mean,"


def _decisions(report: Report) -> Table:
    decisions = report.usage.decisions
    shown = decisions[:_SHOWN]
    more = "" if len(shown) == len(decisions) else f": the first {_SHOWN} of {len(decisions):,} changes"
    table = Table(title=f"Replicas wanted{more}", title_justify="left", box=box.SIMPLE)
    for name in ("second", "replicas", "for", "ready", "starting", "draining"):
        table.add_column(name, justify="left" if name == "for" else "right")
    for one in shown:
        counts = (one.ready, one.starting, one.draining)
        table.add_row(f"{one.time:,.0f}", str(one.replicas), one.reason, *(str(count) for count in counts))
    return table


def _fit(fit: Fit) -> Table:
    hardware, factors = fit.hardware, fit.calibration
    if fit.known:
        rates = f"{factors.compute:.0%} of the FLOP/s, {factors.memory:.0%} of the bandwidth"
    else:
        rates = f"{hardware.bf16_tflops * 1e3:,.0f} GFLOP/s, {hardware.bandwidth_gb_s:,.1f} GB/s"
    title = (
        f"Fitted to {len(fit.steps)} measured steps: {rates}, attention {factors.attention:.0%} of the FLOP/s, overlap "
        f"{factors.overlap:g}, launch {1e3 * factors.launch_s:,.2f} ms, host {1e3 * factors.host_s:,.2f} ms; mean error "
        f"{fit.mean_error:.1%}, worst:"
    )
    table = _table(title, "rows", "tokens", "KV tokens", "measured ms", "fitted ms", "error")
    for step in sorted(fit.steps, key=lambda step: -abs(step.error))[:_WORST]:
        counts = (f"{count:,}" for count in (step.rows, step.tokens, step.kv_tokens))
        table.add_row(*counts, milliseconds(step.measured), milliseconds(step.fitted), f"{step.error:+.1%}")
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left", no_wrap=True)
    return table


def _latency(service: Service) -> Table:
    table = _table("Latency, ms", "", "mean", "p50", "p90", "p99", "max")
    for name, values in (("queue", service.queued), ("TTFT", service.ttft), ("ITL", service.itl), ("E2E", service.e2e)):
        table.add_row(name, *_times(values))
    return table


def _times(values: Percentiles) -> list[str]:
    if not values.count:
        return ["-"] * 5
    return [milliseconds(each) for each in (values.mean, values.p50, values.p90, values.p99, values.max)]


def _services(name: str, services: Mapping[str, Service]) -> Table:
    heads = ("received", "finished", "TTFT p50", "p99 ms", "ITL p50", "p99 ms", "E2E p50", "p99 ms", "goodput", "in SLO")
    table = _table(f"By {name}", "", *heads)
    for key, service in services.items():
        times = [_times(values) for values in (service.ttft, service.itl, service.e2e)]
        table.add_row(
            key or "(none)",
            *(f"{count:,}" for count in (service.received, service.finished)),
            *(text for each in times for text in (each[1], each[3])),
            f"{service.goodput_tokens_per_s:,.0f}",
            f"{service.slo_share:.1%}",
        )
    return table


def _engines(report: Report) -> Table:
    engines = report.engines
    table = _table("Engines", "", "mean", "most")
    table.add_row("rows in a step", f"{engines.mean_rows:,.1f}", f"{engines.max_rows:,}")
    table.add_row("tokens in a step", f"{engines.mean_tokens:,.1f}", "")
    table.add_row("waiting, one replica", f"{engines.queue_mean:,.1f}", f"{engines.queue_max:,}")
    table.add_row("KV pages in use", f"{engines.kv_use_mean:.1%}", f"{engines.kv_use_max:.1%}")
    table.add_row("device busy", f"{engines.busy_share:.1%}", "")
    table.add_row("prefix hit rate", f"{engines.prefix_hit_rate:.1%}", "")
    table.add_section()
    table.add_row("steps", "", f"{engines.steps:,}")
    table.add_row("tokens computed", "", f"{engines.tokens:,}")
    table.add_row("preemptions", "", f"{engines.preemptions:,}")
    if engines.preemptions:
        table.add_row("of them swapped", "", f"{engines.swapped:,}")
        table.add_row("tokens they lost", "", f"{engines.preempted_tokens:,}")
        table.add_row("pages they freed", "", f"{engines.preempted_pages:,}")
        table.add_row("tokens recomputed", "", f"{engines.tokens_recomputed:,}")
    if engines.drafts:
        table.add_section()
        table.add_row("drafts verified", "", f"{engines.draft_tokens:,}")
        table.add_row("of them right", "", f"{engines.accepted_tokens:,} ({engines.acceptance:.1%})")
        table.add_row("tokens a row and step", f"{engines.tokens_a_row:.2f}", "")
        if engines.draft_share:
            table.add_row("draft model's share of the device", f"{engines.draft_share:.1%}", "")
        table.add_section()
    table.add_row("expected lengths off by", "", f"{engines.length_error:+.1%}")
    return table


def _replicas(report: Report) -> Table:
    table = _table("Replicas", "", "requests", "tokens computed", "prefix hit rate", "device busy")
    for number, one in enumerate(report.replicas):
        busy = one.busy_s / report.seconds if report.seconds else 0.0
        table.add_row(str(number), f"{one.requests:,}", f"{one.tokens:,}", f"{one.prefix_hit_rate:.1%}", f"{busy:.1%}")
    return table
