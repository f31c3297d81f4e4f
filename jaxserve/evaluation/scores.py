"""The figures of a result in the order of a table: groups before their tasks, a row for each metric."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxserve.evaluation.result import Result


@dataclass(frozen=True, slots=True)
class Score:
    """One metric of a task or group.

    Attributes:
        metric: the metric's name, and after a comma the filter that answers went through: "none" for none.
        value: None where it is not a number.
        stderr: standard error of the value; None where the harness has no formula and drew no samples.
        higher_is_better: None where the task does not say.
        depth: groups above it.
        group: whether it is the mean of a group.
    """

    task: str
    metric: str
    value: float | None
    stderr: float | None
    documents: int
    higher_is_better: bool | None
    depth: int
    group: bool

    @property
    def key(self) -> tuple[str, str]:
        return self.task, self.metric

    @property
    def label(self) -> str:
        """The metric for people: a filter is named where there is one."""
        metric, _, chosen = self.metric.partition(",")
        return metric if chosen == "none" else f"{metric} ({chosen})"


def scores(result: Result) -> list[Score]:
    """Every figure of a result. A group without figures of its own has no row, but its tasks stand below it all the same."""
    return [score for task, depth in _order(result) for score in _of_task(result, task, depth)]


def _order(result: Result) -> Iterator[tuple[str, int]]:
    """Names and depths; a task that several groups have comes once."""
    members: dict[str, list[str]] = result.harness.get("group_subtasks", {})
    inside = {name for group in members.values() for name in group}
    tops = [name for name in members if name not in inside]
    tops += [name for name in result.harness["results"] if name not in inside and name not in members]
    seen: set[str] = set()

    def walk(name: str, depth: int) -> Iterator[tuple[str, int]]:
        if name in seen:
            return
        seen.add(name)
        yield name, depth
        deeper = depth + any(isinstance(value, float | int) for value in _figures(result, name).values())
        for member in members.get(name, ()):
            yield from walk(member, deeper)

    for top in tops:
        yield from walk(top, 0)


def _of_task(result: Result, task: str, depth: int) -> Iterator[Score]:
    figures, group = _figures(result, task), task in result.harness.get("group_subtasks", {})
    better = result.harness.get("higher_is_better", {}).get(task, {})
    count = (
        result.harness.get("n-samples", {}).get(task, {}).get("effective", result.harness["results"][task].get("sample_len", 0))
    )
    for key, value in figures.items():
        metric, _, chosen = key.partition(",")
        stderr = result.harness["results"][task].get(f"{metric}_stderr,{chosen}")
        yield Score(
            task=task,
            metric=key,
            value=None if value is None else float(value),
            stderr=float(stderr) if isinstance(stderr, float | int) else None,
            documents=int(count),
            higher_is_better=better.get(metric),
            depth=depth,
            group=group,
        )


def _figures(result: Result, task: str) -> dict[str, float | None]:
    """By "metric,filter", without the standard errors."""
    entries = result.harness["results"].get(task, {})
    return {
        key: value
        for key, value in entries.items()
        if "," in key and not key.partition(",")[0].endswith("_stderr") and (value is None or isinstance(value, float | int))
    }
