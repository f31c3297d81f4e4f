"""A server's load on one screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from jaxserve.metrics import catalogue
from jaxserve.terminal.metrics_page import Change

_BARS = " ▁▂▃▄▅▆▇█"
_BAR_WIDTH = 30
_TIMES = {
    "first token (TTFT)": catalogue.TIME_TO_FIRST_TOKEN,
    "between tokens (ITL)": catalogue.INTER_TOKEN_LATENCY,
    "in all (E2E)": catalogue.E2E_LATENCY,
    "in the queue": catalogue.QUEUE_TIME,
    "prefill": catalogue.PREFILL_TIME,
    "decode": catalogue.DECODE_TIME,
}
_QUANTILES = (0.5, 0.9, 0.99)


def screen(url: str, change: Change, rates: Sequence[float]) -> Group:
    """Everything worth watching.

    Args:
        url: the server's.
        change: from one reading to the latest.
        rates: output tokens a second so far, the latest last.
    """
    now = change.after
    up = now.value(catalogue.ENGINE_UP)
    state = Text("up", style="green") if up else Text("the engine takes no requests", style="bold red")
    title = Text.assemble(f"{', '.join(now.label_values('model_name')) or 'no model'} at {url}: ", state)
    return Group(Panel(_load(change, rates), title=title, title_align="left"), _times(change), _counts(change))


def _load(change: Change, rates: Sequence[float]) -> Table:
    now = change.after
    table = Table.grid(padding=(0, 2))
    running, waiting = now.value(catalogue.NUM_REQUESTS_RUNNING), now.value(catalogue.NUM_REQUESTS_WAITING)
    table.add_row("sequences", f"{running:,.0f} running, {waiting:,.0f} waiting")
    usage = now.value(catalogue.KV_CACHE_USAGE)
    table.add_row("KV cache", Text.assemble(_bar(usage), f" {usage:.1%}"))
    hits = change.share(catalogue.PREFIX_CACHE_HITS, catalogue.PREFIX_CACHE_QUERIES)
    table.add_row("prefix cache", "no prompts" if hits is None else f"{hits:.1%} of prompt tokens were there")
    output, prompt = change.rate(catalogue.GENERATION_TOKENS), change.rate(catalogue.PROMPT_TOKENS)
    table.add_row("tokens a second", f"{output:,.1f} out, {prompt:,.1f} in")
    table.add_row("", Text(sparkline(rates), style="cyan"))
    rows, step = change.mean(catalogue.BATCH_ROWS), change.mean(catalogue.STEP_SECONDS)
    steps = "no steps" if rows is None or step is None else f"{rows:,.1f} rows and {1e3 * step:,.1f} ms on average"
    table.add_row("steps", steps)
    if now.value(catalogue.SPEC_DRAFT_TOKENS):
        table.add_row("drafts", _drafts(change))
    return table


def _drafts(change: Change) -> str:
    """What became of guesses: tokens that a row with some got in a step, its own included, and the share that was right."""
    acceptance = change.share(catalogue.SPEC_ACCEPTED_TOKENS, catalogue.SPEC_DRAFT_TOKENS)
    more = change.share(catalogue.SPEC_ACCEPTED_TOKENS, catalogue.SPEC_DRAFTS)
    if acceptance is None or more is None:
        return "none verified"
    wasted = change.rate(catalogue.SPEC_DRAFT_TOKENS) - change.rate(catalogue.SPEC_ACCEPTED_TOKENS)
    found = f"{acceptance:.1%} right, {1 + more:.2f} tokens a row and step, {wasted:,.1f} a second wasted"
    return f"{found}; {change.rate(catalogue.SPEC_SECONDS):.1%} of the time"


def _times(change: Change) -> Table:
    table = Table(title="milliseconds", title_justify="left")
    table.add_column("")
    for name in ("mean", *(f"p{100 * share:g}" for share in _QUANTILES)):
        table.add_column(name, justify="right")
    for name, metric in _TIMES.items():
        values = (change.mean(metric), *(change.quantile(metric, share) for share in _QUANTILES))
        table.add_row(name, *("-" if value is None else f"{1e3 * value:,.1f}" for value in values))
    return table


def _counts(change: Change) -> Table:
    table = Table(title="since the start", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    now = change.after
    for name, metric in (
        ("requests received", catalogue.REQUESTS_RECEIVED),
        ("finished", catalogue.REQUESTS_FINISHED),
        ("active", catalogue.REQUESTS_ACTIVE),
    ):
        table.add_row(name, f"{now.value(metric):,.0f}")
    for word, metric in (("aborted", catalogue.REQUESTS_ABORTED), ("rejected", catalogue.REQUESTS_REJECTED)):
        _add_reasons(table, word, now.by_label(metric, "reason"))
    _add_nonzero(table, "preemptions", now.value(catalogue.NUM_PREEMPTIONS))
    _add_nonzero(table, "programs compiled too late", now.value(catalogue.LATE_COMPILES))
    _add_nonzero(table, "engines that hung", now.value(catalogue.ENGINE_HANGS))
    _add_reasons(table, "restarts", now.by_label(catalogue.PROCESS_RESTARTS, "role"))
    return table


def _add_reasons(table: Table, word: str, counts: dict[str, float]) -> None:
    for reason, count in sorted(counts.items()):
        _add_nonzero(table, f"{word}: {reason}", count)


def _add_nonzero(table: Table, name: str, count: float) -> None:
    if count:
        table.add_row(name, f"{count:,.0f}")


def _bar(share: float) -> Text:
    full = round(min(max(share, 0.0), 1.0) * _BAR_WIDTH)
    style = "red" if share > 0.9 else "yellow" if share > 0.7 else "green"
    return Text.assemble(("█" * full, style), ("░" * (_BAR_WIDTH - full), "dim"))


def sparkline(values: Sequence[float]) -> str:
    """One character a value, as high as its share of the largest."""
    most = max(values, default=0.0)
    if most <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] for value in values)
