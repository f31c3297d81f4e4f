"""How results differ from the first of them, and whether that is more than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxserve.evaluation.pairs import pairs
from jaxserve.evaluation.result import Result
from jaxserve.evaluation.scores import Score, scores

LEVEL = 0.05  # p-values below this are marked


@dataclass(frozen=True, slots=True)
class Difference:
    """A metric of one result against that of another.

    Attributes:
        base: the metric of the first one; None where it has none.
        score: that of the other one.
        value: score - base; None without both.
        stderr: standard error of it; None where nothing tells.
        p: probability of a difference this large between models that are alike; None where nothing tells.
        paired: whether stderr and p come from the documents one by one, and not from two standard errors.
    """

    base: Score | None
    score: Score
    value: float | None = None
    stderr: float | None = None
    p: float | None = None
    paired: bool = False

    @property
    def significant(self) -> bool:
        return self.p is not None and self.p < LEVEL

    def as_dict(self) -> dict[str, Any]:
        return {
            "task": self.score.task,
            "metric": self.score.metric,
            "difference": self.value,
            "stderr": self.stderr,
            "p": self.p,
            "paired": self.paired,
        }


def differences(base: Result, other: Result) -> list[Difference]:
    """Every metric of `other` against the same of `base`."""
    before = {score.key: score for score in scores(base)}
    return [_difference(before.get(score.key), score, base, other) for score in scores(other)]


def _difference(before: Score | None, score: Score, base: Result, other: Result) -> Difference:
    if before is None or before.value is None or score.value is None:
        return Difference(before, score)
    value = score.value - before.value
    paired = pairs(base, other, score.task, score.metric)
    if paired is not None:
        return Difference(before, score, value, paired.stderr(), paired.p(), paired=True)
    if before.stderr is None or score.stderr is None:
        return Difference(before, score, value)
    stderr = math.hypot(before.stderr, score.stderr)
    p = math.erfc(abs(value) / stderr / math.sqrt(2)) if stderr else None  # two sides of a normal distribution
    return Difference(before, score, value, stderr, p)


def unlike(results: Sequence[Result]) -> list[str]:
    """What makes figures of these results not mean the same: a line for each setting, number of examples or version of a task."""
    lines = []
    for name in ("limit", "num_fewshot", "apply_chat_template", "system_instruction", "fewshot_seed"):
        chosen = [str(result.header["settings"].get(name)) for result in results]
        if len(set(chosen)) > 1:
            lines.append(f"{name} differs: {', '.join(chosen)}")
    for name, what in (("versions", "the task's version"), ("n-shot", "the number of examples")):
        for task in results[0].harness["results"]:
            seen = [str(result.harness[name][task]) for result in results if task in result.harness.get(name, {})]
            if len(set(seen)) > 1:
                lines.append(f"{task}: {what} differs: {', '.join(seen)}")
    harness = [str(result.header["versions"].get("lm_eval")) for result in results]
    if len(set(harness)) > 1:
        lines.append(f"lm-eval's version differs: {', '.join(harness)}")
    return lines
