"""A study on a terminal."""

from __future__ import annotations

from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from jaxserve.planner.formulas import formulas
from jaxserve.planner.roofline import Limit, Step
from jaxserve.planner.speculation import SpeculationPlan
from jaxserve.planner.study import Study
from jaxserve.planner.units import dollars, length, milliseconds, plural, short, size, time

_COLOURS: dict[Limit, str] = {
    "weight reads": "cyan",
    "KV reads": "blue",
    "compute": "magenta",
    "interconnect": "yellow",
    "launch": "red",
}


def show(study: Study, console: Console, *, with_formulas: bool) -> None:
    parts: list[RenderableType] = [
        _title(study),
        Columns([_memory(study), _contexts(study)], padding=(0, 3)),
        _bounds(study),
        _decode(study),
        _prefill(study),
        _service(study),
    ]
    if study.speculation is not None:
        parts.append(_speculation(study.speculation))
    if study.notes:
        parts.append(Text("\n".join(f"note: {note}" for note in study.notes), style="dim"))
    if with_formulas:
        parts.append(_formulas(study))
    console.print(Group(*parts))


def _table(title: str, *columns: str, text: int = 1) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < text else "right", no_wrap=True)
    return table


def _title(study: Study) -> Panel:
    layout, room = study.layout, study.ledger
    shape = layout.shape
    active = f", {short(study.active_parameters)} active" if shape.experts else ""
    kinds = dict.fromkeys(f"{kind.kv_heads} KV heads of {kind.head_dim}" for kind in shape.layer_heads)
    heads = "latent attention" if shape.latent else f"{shape.num_heads} heads, {' or '.join(kinds)}"
    first = f"[bold]{escape(shape.name)}[/bold]  {short(study.parameters)} parameters{active}; {shape.num_layers} layers, {heads}"
    kind = f"[bold]{layout.tp} x {layout.hardware.name}[/bold]  weights {layout.weights}, KV {layout.kv_dtype}; "
    weights = f"{size(study.weight_bytes)} of weights, {size(study.weight_bytes_device)} a GPU"
    numbers = layout.kv_number_bytes
    alone = "" if numbers == study.kv_token_bytes else f", {size(numbers)} without scales"
    held = f"[bold green]{size(study.kv_token_bytes)} per token[/bold green]{alone}"
    kv = f"KV cache {held} ({size(study.kv_token_bytes_device)} a GPU)"
    estimate = study.round_ledger
    left = f"[bold green]{estimate.kv:.2f} GB for KV[/bold green] a GPU ({room.kv:.2f} GiB counted)" if estimate else ""
    left = left or f"[bold green]{room.kv:.2f} GiB for KV[/bold green] a GPU"
    left += f": [bold green]{_millions(room.kv_tokens)} tokens[/bold green]"
    floor_ms = study.floor_s * 1e3
    floor = (
        f"Decode floor [bold green]{floor_ms:{'.1f' if floor_ms >= 0.1 else '.2g'}} ms[/bold green] a token; a replica serves "
        f"{short(study.replica.tokens_per_s)} tokens/s at {dollars(study.replica.usd_per_m_tokens)} a million"
    )
    return Panel(f"{first}\n{kind}{weights}\n{kv}; {left}\n{floor}", box=box.ROUNDED, expand=False)


def _millions(tokens: int) -> str:
    return f"{tokens / 1e6:.1f}M" if tokens >= 1e6 else short(tokens)


def _memory(study: Study) -> Table:
    ledgers = [item for item in (study.ledger, study.round_ledger) if item]
    heads = [f"{'counted' if item.unit == 'GiB' else 'round figures'}, {item.unit}" for item in ledgers]
    table = _table("Memory of one GPU", "", *heads)

    def add(name: str, field: str, sign: str = "", style: str = "") -> None:
        table.add_row(name, *(f"{sign}{getattr(item, field):.2f}" for item in ledgers), style=style)

    add("HBM", "hbm")
    add(f"weights ({study.layout.weights})", "weights", "-")
    if study.layout.draft is not None:
        add("draft (bf16)", "draft", "-")
    if study.layout.adapters is not None:
        add(f"adapters ({study.layout.adapters.slots} of rank {study.layout.adapters.rank})", "adapters", "-")
    add("workspace", "workspace", "-")
    add("activations", "activations", "-")
    add("margin", "margin", "-")
    table.add_section()
    add("for KV", "kv", style="bold green")
    table.add_row("tokens of KV", *(f"{item.kv_tokens:,}" for item in ledgers), style="bold")
    return table


def _contexts(study: Study) -> Table:
    table = _table("Requests at once, by context", "context", "KV a GPU", "requests")
    for row in study.contexts:
        mark = "*" if row.beyond_model else ""
        table.add_row(length(row.context) + mark, size(row.kv_bytes_device), f"{row.requests:,}", style="dim" if mark else "")
    if any(row.beyond_model for row in study.contexts):
        table.caption = f"* the model was made for {length(study.layout.shape.max_position_embeddings)}"
    return table


def _bounds(study: Study) -> Text:
    gpu = study.layout.hardware
    return Text.from_markup(
        f"Balance point [bold]{study.balance:.0f} FLOP/B[/bold] at peak ({gpu.bandwidth_gb_s / 1e3:g} TB/s): memory bandwidth "
        f"limits below it, compute above.\nIn decode, products with the weights cross it at a batch of "
        f"[bold]{study.crossover_batch:,}[/bold]; attention does [bold]{study.attention_intensity:.0f} FLOP/B[/bold] "
        f"at every batch.\n"
    )


def _decode(study: Study) -> Table:
    heads = ("batch", "weights", "KV", "compute", "all-reduce", "step ms", "FLOP/B", "tok/s each", "tok/s", "$/M", "limited by")
    table = _table(f"Decode at {length(study.config.decode_context)} tokens of context, prompts apart", *heads, text=0)
    table.columns[-1].justify = "left"
    for row in study.decode:
        table.add_row(
            f"{row.step.tokens:,}",
            *_times(row.step),
            f"{row.intensity:.0f}",
            f"{row.tokens_per_s_request:.0f}",
            f"{row.tokens_per_s:,.0f}",
            dollars(row.usd_per_m_tokens),
            _limit(row.step, ", KV full" if row is study.decode[-1] else ""),
        )
    return table


def _prefill(study: Study) -> Table:
    table = _table(
        f"Prefill alone at {study.config.compute_efficiency:.0%} of peak compute: time to first token",
        *("prompt", "weights", "KV", "compute", "all-reduce", "TTFT ms", "tok/s", "limited by"),
        text=0,
    )
    table.columns[-1].justify = "left"
    longest = study.layout.shape.max_position_embeddings
    for step in study.prefill:
        mark, style = ("*", "dim") if step.tokens > longest else ("", "bold" if step.tokens == study.config.prompt else "")
        speed = f"{step.tokens / step.total_s:,.0f}"
        table.add_row(length(step.tokens) + mark, *_times(step), speed, _limit(step), style=style)
    return table


def _times(step: Step) -> tuple[str, ...]:
    seconds = (step.weights_s, step.kv_s, step.compute_s, step.network_s, step.total_s)
    return tuple(milliseconds(each) for each in seconds)


def _limit(step: Step, more: str = "") -> Text:
    return Text(step.limit + more, style=_COLOURS[step.limit])


def _service(study: Study) -> Panel:
    one, many, load = study.replica, study.fleet, study.load
    rows = Table.grid(padding=(0, 2))
    rows.add_row(
        "one replica",
        f"[bold]{one.batch:,}[/bold] requests at once (KV holds {one.kv_batch:,}), mean ITL {time(one.itl_s)}, "
        f"{short(one.requests_per_s)} requests/s, [bold]{short(one.tokens_per_s)} output tokens/s[/bold]",
    )
    rows.add_row("limited by", one.limit)
    rows.add_row(
        "price",
        f"[bold]{dollars(one.usd_per_m_tokens)}[/bold] a million output tokens at full load, prompts included; "
        f"[bold]{dollars(one.usd_per_m_tokens_planned)}[/bold] at {load.utilisation:.0%}",
    )
    if many.needed is not None:
        wanted = f"{load.users:,} users" if load.users is not None else f"{load.requests_per_second:g} requests/s"
        enough = "" if many.replicas >= many.needed else f"; [bold red]{many.replicas:,} given: too few[/bold red]"
        rows.add_row("load", f"{wanted} need [bold]{plural(many.needed, 'replica')}[/bold] at {load.utilisation:.0%}{enough}")
    rows.add_row(
        "fleet",
        f"{plural(many.replicas, 'replica')}, {plural(many.gpus, 'GPU')}, {dollars(many.usd_per_hour)} an hour; at "
        f"{load.utilisation:.0%}: {many.users:,} requests at once, {short(many.requests_per_s)} requests/s, "
        f"{short(many.tokens_per_s)} tokens/s",
    )
    title = f"Serving {load.prompt:,} + {load.output:,} tokens, mean ITL within {load.itl_s * 1e3:g} ms"
    return Panel(rows, title=title, title_align="left", box=box.ROUNDED, expand=False)


def _speculation(plan: SpeculationPlan) -> Table:
    """The drafts of a row that give most, and how much faster rows decode with them."""
    who = plan.method if plan.draft is None else f"{plan.method} {escape(plan.draft)}"
    title = f"Speculation ({who}), {plan.most} drafts of a row at most: drafts, and times the decoding without, by acceptance"
    table = _table(
        title, "batch", "step ms", "with drafts", "guessing", *(f"{gain.chance:.0%}" for gain in plan.rows[0].gains), text=0
    )
    for row in plan.rows:
        seconds = (milliseconds(each) for each in (row.plain_s, row.verify_s, row.guess_s))
        gains = (f"{gain.drafts}: {gain.speedup:.2f}" if gain.drafts else "-" for gain in row.gains)
        table.add_row(f"{row.batch:,}", *seconds, *gains)
    if plan.draft is not None:
        held = f"{size(plan.draft_bytes_device)} of weights and {size(plan.draft_kv_bytes_device)} a token on each GPU"
        table.caption = f"the draft takes {held}; a prompt takes {plan.prefill_share:.0%} longer, since it follows them"
        table.caption_justify = "left"
    return table


def _formulas(study: Study) -> Table:
    table = Table(title="Formulas", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("what", no_wrap=True)
    table.add_column("formula and numbers")
    for what, formula, numbers in formulas(study):
        table.add_row(what, Group(Text(formula, style="dim"), Text(numbers)))
    return table
