"""Results as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from jaxserve.evaluation.differences import LEVEL, Difference, differences, unlike
from jaxserve.evaluation.result import Result, labels
from jaxserve.evaluation.scores import Score, scores
from jaxserve.planner.units import plural

_ARROWS = {True: "↑", False: "↓", None: ""}


def show(result: Result, console: Console) -> None:
    table = Table(title=_title(result), title_justify="left")
    for name in ("task", "metric", ""):
        table.add_column(name)
    for name in ("value", "± stderr", "documents"):
        table.add_column(name, justify="right")
    above: Score | None = None
    for score in scores(result):
        again = above is not None and above.task == score.task
        if above is not None and not again and (score.depth < above.depth or score.group):
            table.add_section()
        table.add_row(
            "" if again else _name(score),
            score.label,
            _ARROWS[score.higher_is_better],
            figure(score.value),
            figure(score.stderr),
            "" if again else f"{score.documents:,}",
            style="bold" if score.group else None,
        )
        above = score
    console.print(table)
    console.print(_effort(result))
    _notes(result, console)


def show_comparison(results: Sequence[Result], console: Console) -> None:
    """Print every metric of several models, and how it differs from that of the first."""
    names = labels(results)
    table = Table(title=f"{plural(len(results), 'checkpoint')}, compared with {names[0]}", title_justify="left")
    table.add_column("")
    for name in ("value", "± stderr", "difference", "± stderr", "p"):
        table.add_column(name, justify="right")
    table.add_column("")
    found = [{entry.score.key: entry for entry in differences(results[0], result)} for result in results]
    for key in dict.fromkeys(key for entries in found for key in entries):
        _add_metric(table, [(name, entries[key]) for name, entries in zip(names, found, strict=True) if key in entries], names[0])
    console.print(table)
    console.print(_legend([entry for entries in found[1:] for entry in entries.values()]))
    for line in unlike(results):
        console.print(f"Careful: {line}", style="yellow")
    for result in results:
        _notes(result, console)


def _add_metric(table: Table, entries: Sequence[tuple[str, Difference]], first: str) -> None:
    score = entries[0][1].score
    indent = "  " * score.depth
    heading = f"{indent}{score.task}  {score.label} {_ARROWS[score.higher_is_better]}"
    table.add_row(heading, style="bold green" if score.group else "bold")
    for place, (name, entry) in enumerate(entries):
        against = (figure(entry.value, signed=True), figure(entry.stderr), _probability(entry), _verdict(entry))
        table.add_row(
            f"{indent}  {name}",
            figure(entry.score.value),
            figure(entry.score.stderr),
            *(against if name != first else ()),
            end_section=place == len(entries) - 1,
        )


def figure(value: float | None, *, signed: bool = False) -> str:
    """A metric with four decimals, or its power of ten where they would not show it; a dash where there is none."""
    if value is None:
        return "–"
    sign = "+" if signed else ""
    if 0.0 < abs(value) < 0.001:
        return f"{value:{sign}.1e}"
    return f"{value:{sign}.4f}" if abs(value) < 100 else f"{value:{sign},.1f}"


def _name(score: Score) -> str:
    return "  " * score.depth + score.task


def _title(result: Result) -> str:
    model = result.header["model"]
    return f"{result.name}: {model['architecture']}, {model['parameters']:,} parameters, {model['dtype']}"


def _effort(result: Result) -> str:
    tokens, seconds = result.header["tokens"], result.header["seconds"]
    return (
        f"{tokens['prompt']:,} prompt tokens, {tokens['prefix_hit_rate']:.0%} of them from the prefix cache, and "
        f"{tokens['output']:,} output tokens in {seconds['evaluate']:,.1f} s: {tokens['per_second']:,.0f} tokens/s "
        f"(and {seconds['load']:,.1f} s to load)"
    )


def _notes(result: Result, console: Console) -> None:
    for line in result.header["notes"]:
        console.print(f"{result.name}: {line}", style="yellow")


def _probability(entry: Difference) -> str:
    if entry.p is None:
        return "–"
    return "<0.001" if entry.p < 0.001 else f"{entry.p:.3f}"


def _verdict(entry: Difference) -> str:
    """A star says that chance alone would seldom do it; the word, in which direction."""
    if not entry.significant or entry.value is None:
        return ""
    if entry.score.higher_is_better is None:
        return "*"
    return "* better" if (entry.value > 0) == entry.score.higher_is_better else "* worse"


def _legend(compared: Sequence[Difference]) -> str:
    tested = [entry for entry in compared if entry.p is not None]
    if not tested:
        return "Nothing tells whether these differences are more than chance."
    pairs = sum(entry.paired for entry in tested)
    how = "." if pairs == len(tested) else ", the others from two standard errors (normal distribution)."
    return (
        f"* p < {LEVEL}: chance alone would make so large a difference in fewer than one comparison of {round(1 / LEVEL)}. "
        f"Of {plural(len(tested), 'comparison')} about {LEVEL * len(tested):.1f} would be marked if nothing differed.\n"
        f"{pairs} of them are document by document (randomisation test){how}"
    )
