"""What an audit found, as a table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from jaxserve.quantization.audit import Proposal, increase
from jaxserve.quantization.recipes import Recipe
from jaxserve.weights.manifest import Quality

_DIGITS = 3


def show_proposal(proposal: Proposal, recipe: Recipe, budget: float, console: Console) -> None:
    """Print the errors of every parameter, what those with the largest cost alone, and what is kept."""
    table = Table(title=f"{recipe.name}: errors of products, and perplexity with nothing else rounded", title_justify="left")
    for name in ("parameter", "relative", "cosine", "largest", "perplexity", ""):
        table.add_column(name, justify="left" if name in ("parameter", "") else "right")
    kept = {unit for unit in proposal.errors if unit not in proposal.selection.units()}
    for unit, sums in sorted(proposal.errors.items(), key=lambda entry: -entry[1].relative):
        alone = proposal.alone.get(unit)
        table.add_row(
            ".".join(unit),
            f"{sums.relative:.4f}",
            f"{sums.cosine:.5f}",
            f"{sums.largest:.3f}",
            "" if alone is None else f"{increase(proposal.before, alone):+.{_DIGITS}f} %",
            "kept" if unit in kept else "",
        )
    console.print(table)
    whole, rest = (increase(proposal.before, after) for after in (proposal.after, proposal.proposed))
    console.print(
        f"perplexity {proposal.before:.4f}; with everything rounded {proposal.after:.4f} ({whole:+.{_DIGITS}f} %)", markup=False
    )
    if kept:
        within = "within" if rest <= budget else "still above"
        console.print(
            f"with {len(kept)} kept {proposal.proposed:.4f} ({rest:+.{_DIGITS}f} %), {within} the budget of {budget:g} %",
            markup=False,
        )


def show_quality(quality: Quality | None, console: Console) -> None:
    """Print what is written into a manifest."""
    if quality is not None:
        console.print(
            f"perplexity on {quality.tokens} held-out tokens: {quality.perplexity_before:.4f} before,"
            f" {quality.perplexity_after:.4f} after ({quality.increase_percent:+.{_DIGITS}f} %)",
            markup=False,
        )
