"""What compiling found out, on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from jaxserve.aot.build import CompiledStep, Result
from jaxserve.aot.facts import Facts
from jaxserve.aot.ledger import GB
from jaxserve.aot.thunks import Launches


def show(result: Result, console: Console) -> None:
    console.print(
        f"{result.config.model}: {result.num_layers} layers, {result.num_parameters / 1e9:.2f}B parameters in {result.dtype}, "
        f"on {result.device} x{result.config.tp}, compiled by jax {result.jax}"
    )
    console.print(_ledger(result))
    pages = f"{result.num_pages:,} pages of {result.config.page_size} tokens, in {result.kv_dtype}"
    console.print(f"the programs' KV cache: {pages}")
    console.print(_steps(result))
    console.print(_choices(result))
    if result.saved is not None:
        console.print(f"saved {len(result.saved.names)} programs, {result.saved.bytes / 1e6:.1f} MB, in {result.saved.directory}")
    for line in _copies(result):
        console.print(line)


def _ledger(result: Result) -> Table:
    ledger = result.ledger
    table = Table(title="memory of one device, from shapes and from the compiler", box=box.SIMPLE, title_justify="left")
    table.add_column("")
    table.add_column("GB", justify="right")
    for name, size in (
        ("what the driver gives" if result.on_gpu else "what is free", ledger.memory),
        (f"usable ({result.config.gpu_memory_fraction:g} of it)" if result.on_gpu else "usable", ledger.usable),
        ("weights", ledger.weights),
        ("sampler's tables and last hidden states", ledger.state),
        ("temporaries of the largest step", ledger.temporary),
        ("left for the KV cache", ledger.cache),
    ):
        table.add_row(name, f"{size / GB:.2f}")
    if result.on_gpu:  # a CPU's cache does not grow into all that is free
        table.add_row("tokens that the KV cache holds then", f"{ledger.tokens:,}")
    return table


def _steps(result: Result) -> Table:
    table = Table(title="steps whose rows need least", box=box.SIMPLE, title_justify="left")
    for name in ("tokens x rows", "all-reduces of activations", "other collectives", "copies of weights, cache"):
        table.add_column(name, justify="right")
    for name in ("state in place", "kernels", "launches", "temporary GB", "compiled in s"):
        table.add_column(name, justify="right")
    for step in result.steps:
        table.add_row(*_row(step, result.num_layers))
    return table


def _row(step: CompiledStep, layers: int) -> tuple[str, ...]:
    return (
        f"{step.tokens} x {step.rows}" + (", verify" if step.drafts else ""),
        _all_reduces(step.facts.activation_all_reduces, layers),
        _others(step.facts),
        f"{len(step.facts.weight_copies)}, {len(step.facts.cache_copies)}",
        "yes" if step.state_in_place else "NO",
        "not counted" if step.launches is None else f"{step.launches.kernels:,}",
        _launches(step.launches),
        f"{step.temporary / GB:.3f}",
        f"{step.seconds:.0f}",
    )


def _choices(result: Result) -> Table:
    table = Table(title="choice of tokens, by what rows need", box=box.SIMPLE, title_justify="left")
    for name in ("rows", "variant", "collectives", "conditionals", "sorts", "kernels", "launches", "compiled in s"):
        table.add_column(name, justify="right")
    for (rows, drafts), choices in {(step.rows, step.drafts): step.choices for step in result.steps}.items():
        for name, choice in choices.items():
            facts, launches = choice.facts, choice.launches
            table.add_row(
                f"{rows} x {1 + drafts}" if drafts else str(rows),
                name,
                str(sum(entry.count for entry in facts.collectives)),
                str(facts.conditionals),
                str(len(facts.sorts)),
                "not counted" if launches is None else f"{launches.kernels:,}",
                _launches(launches),
                f"{choice.seconds:.0f}",
            )
    return table


def _all_reduces(count: int, layers: int) -> str:
    """161 = 2 x 80 + 1, where that is so."""
    return f"{count} = 2 x {layers} + 1" if count == 2 * layers + 1 else str(count)


def _others(facts: Facts) -> str:
    """Collectives that are not of activations: at every step, and at steps that need them."""
    every = sum(entry.count for entry in facts.collectives if entry.when != "branch") - facts.activation_all_reduces
    sometimes = sum(entry.count for entry in facts.collectives if entry.when == "branch")
    return f"{every}, {sometimes} in branches"


def _launches(launches: Launches | None) -> str:
    if launches is None:
        return "not counted"
    buffers = "1 command buffer" if launches.command_buffers == 1 else f"{launches.command_buffers} command buffers"
    return buffers if launches.whole else f"{buffers}, {launches.single} single"


def _copies(result: Result) -> list[str]:
    lines = []
    for step in result.steps:
        for copy in (*step.facts.weight_copies, *step.facts.cache_copies):
            lines.append(f"copy in {step.tokens} x {step.rows}: {copy}")
        for name in step.facts.weights_read_again:
            lines.append(f"read more than once in {step.tokens} x {step.rows}: {name}")
    return lines
