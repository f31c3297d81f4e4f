"""A report as tables for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from jaxserve.load.report import LoadReport
from jaxserve.workload.stats import Percentiles


def show(report: LoadReport, console: Console) -> None:
    console.print(_counts(report))
    console.print(_times(report))
    if report.agreement:
        console.print(_agreement(report))


def _counts(report: LoadReport) -> Table:
    table = Table(title=f"{report.model}: {report.requests:,} requests in {report.seconds:,.1f} s", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("finished", f"{report.finished:,}")
    for name, count in sorted(report.errors.items()):
        table.add_row(f"failed: {name}", f"{count:,}")
    if report.retries:
        table.add_row("came back after a refusal", f"{report.retries:,}")
    table.add_row("requests a second", f"{report.finished / report.seconds:,.2f}")
    table.add_row("prompt tokens (of them cached)", f"{report.prompt_tokens:,} ({report.cached_tokens:,})")
    table.add_row("output tokens", f"{report.output_tokens:,}")
    table.add_row("output tokens a second", f"{report.output_tokens_per_s:,.1f}")
    limits = f"TTFT {report.slo.slo_ttft_ms:g} ms, ITL {report.slo.slo_itl_ms:g} ms"
    table.add_row(f"within the SLO ({limits})", f"{report.slo_share:.1%}")
    table.add_row("goodput, output tokens a second", f"{report.goodput_tokens_per_s:,.1f}")
    return table


def _times(report: LoadReport) -> Table:
    table = Table(title="milliseconds", title_justify="left")
    table.add_column("")
    for name in ("mean", "p50", "p90", "p99", "max"):
        table.add_column(name, justify="right")
    rows = {
        "to the first token (TTFT)": report.ttft,
        "between tokens (ITL), mean of a request": report.itl,
        "between pieces of text": report.gap,
        "in all (E2E)": report.total,
        "sent late by this program": report.lag,
    }
    for name, values in rows.items():
        table.add_row(name, *_milliseconds(values))
    return table


def _milliseconds(values: Percentiles) -> list[str]:
    return [f"{1e3 * value:,.1f}" for value in (values.mean, values.p50, values.p90, values.p99, values.max)]


def _agreement(report: LoadReport) -> Table:
    table = Table(title="the same by the server's own metrics", title_justify="left")
    table.add_column("")
    for name in ("clients", "server", "unit"):
        table.add_column(name, justify="right")
    for pair in report.agreement:
        table.add_row(pair.name, f"{pair.clients:,.1f}", f"{pair.server:,.1f}", pair.unit)
    return table
