"""Two models on the same documents: what each document adds to the difference of a metric.

Compared document by document, no assumption is needed of how hard a document is, and much smaller differences show than two
standard errors would let through.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxserve.evaluation.result import Result
from jaxserve.evaluation.values import DOCUMENTS

_EXACT = 14  # documents that differ, up to which all sign patterns are tried
_LIGHT = 0.002  # share of the squares that no part may exceed, for the normal distribution to be taken
_PATTERNS = 20_000  # drawn for the others
_CHUNK = 2**22  # signs held at once
_SEED = 0
_CLOSE = 1e-9  # the values are those that the figure was made of

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pairs:
    """The documents of one or more tasks.

    Attributes:
        parts: by task, what each document adds; all together are the difference, up to the factor.
        shares: by task, the weight of each document, all together 1.
        factor: how much the metric changes with the sum of the parts.
    """

    parts: tuple[Floats, ...]
    shares: tuple[Floats, ...]
    factor: float

    def stderr(self) -> float | None:
        """Standard error of the difference: that of a ratio estimator, from each document's distance to its task's difference.

        None for a task of one document, which tells nothing of how they vary.
        """
        total = 0.0
        for parts, shares in zip(self.parts, self.shares, strict=True):
            count = len(parts)
            if count < 2:
                return None
            total += count / (count - 1) * float(((parts - parts.sum() * shares) ** 2).sum())
        return self.factor * math.sqrt(total)

    def p(self) -> float:
        """Probability of a difference this large between models that are alike."""
        return sign_flip_p(np.concatenate(self.parts))


def pairs(base: Result, other: Result, task: str, metric: str) -> Pairs | None:
    """Of a task or a group. None where the documents are not the same, or the metric is no mean over documents or tasks."""
    if task in base.harness.get("group_subtasks", {}):
        return _of_group(base, other, task, metric)
    left, right = (_values(result, task) for result in (base, other))
    if left is None or right is None or left[DOCUMENTS] != right[DOCUMENTS]:
        return None
    old, new = (np.asarray(column.get(metric, ()), np.float64) for column in (left, right))
    before, after = (_figure(result, task, metric) for result in (base, other))
    if old.shape != new.shape or not old.size:
        return None
    if old.ndim == 1:
        means = _same(float(old.mean()), before) and _same(float(new.mean()), after)
        count = len(old)
        return Pairs(((new - old) / count,), (np.full(count, 1 / count),), 1.0) if means else None
    if not np.array_equal(old[:, 1], new[:, 1]):
        return None
    return _of_texts(old[:, 0], new[:, 0], old[:, 1], (before, after))


def _of_texts(old: Floats, new: Floats, weights: Floats, figures: tuple[float | None, float | None]) -> Pairs | None:
    whole = float(weights.sum())
    before, after = float(old.sum()) / whole, float(new.sum()) / whole
    parts, shares = ((new - old) / whole,), (weights / whole,)
    if _same(-before / math.log(2), figures[0]) and _same(-after / math.log(2), figures[1]):
        return Pairs(parts, shares, 1 / math.log(2))
    if _same(math.exp(-before), figures[0]) and _same(math.exp(-after), figures[1]):
        return Pairs(parts, shares, math.exp(-(before + after) / 2))  # the slope half-way
    return None


def _of_group(base: Result, other: Result, group: str, metric: str) -> Pairs | None:
    """A mean of tasks, all alike or by their sizes."""
    tasks = [task for task in dict.fromkeys(_leaves(base, group)) if _figure(base, task, metric) is not None]
    found = [pairs(base, other, task, metric) for task in tasks]
    kept = [entry for entry in found if entry is not None]
    if not kept or len(kept) < len(found):
        return None
    sizes = np.array([len(entry.parts[0]) for entry in kept], np.float64)
    for weights in (np.full(len(kept), 1 / len(kept)), sizes / sizes.sum()):
        if all(_same(_mean(result, tasks, metric, weights), _figure(result, group, metric)) for result in (base, other)):
            parts = tuple(weight * entry.factor * entry.parts[0] for weight, entry in zip(weights, kept, strict=True))
            return Pairs(parts, tuple(entry.shares[0] for entry in kept), 1.0)
    return None


def _leaves(result: Result, group: str) -> Iterator[str]:
    members: dict[str, list[str]] = result.harness["group_subtasks"]
    for name in members[group]:
        if name in members:
            yield from _leaves(result, name)
        else:
            yield name


def _mean(result: Result, tasks: Sequence[str], metric: str, weights: Floats) -> float:
    figures = [_figure(result, task, metric) for task in tasks]
    return math.nan if None in figures else float(weights @ np.array(figures, np.float64))


def _values(result: Result, task: str) -> dict[str, Any] | None:
    values: dict[str, Any] | None = result.header["values"].get(task)
    return values


def _figure(result: Result, task: str, metric: str) -> float | None:
    figure = result.harness["results"].get(task, {}).get(metric)
    return float(figure) if isinstance(figure, float | int) else None


def _same(mean: float, figure: float | None) -> bool:
    return figure is not None and math.isclose(mean, figure, rel_tol=_CLOSE, abs_tol=_CLOSE)


def sign_flip_p(parts: Floats) -> float:
    """Share of all ways to flip signs of the parts whose sum is at least as far from 0 as theirs: Fisher's randomisation test.

    If two models were alike, the difference on each document could as well have had the other sign. For right and wrong answers
    this is McNemar's exact test. Where there are too many ways, some thousands are drawn; where there are very many parts of
    which none weighs much, their sum has a normal distribution.
    """
    given = parts[parts != 0.0]
    if not len(given):
        return 1.0
    sizes, least = np.abs(given), abs(float(given.sum())) * (1 - _CLOSE)
    if np.allclose(sizes, sizes[0], rtol=_CLOSE, atol=0.0):
        return _sign_test(int((given > 0.0).sum()), len(given))
    if len(given) <= _EXACT:
        signs = np.array(list(product((-1.0, 1.0), repeat=len(given))))
        return float((np.abs(signs @ given) >= least).mean())
    squares = given**2
    if squares.max() <= _LIGHT * squares.sum():
        return math.erfc(least / math.sqrt(2 * float(squares.sum())))
    dice, hits, rows = np.random.default_rng(_SEED), 0, max(1, _CHUNK // len(given))
    for first in range(0, _PATTERNS, rows):
        signs = dice.integers(0, 2, (min(rows, _PATTERNS - first), len(given)), dtype=np.int8) * 2.0 - 1.0
        hits += int((np.abs(signs @ given) >= least).sum())
    return (hits + 1) / (_PATTERNS + 1)  # the pattern at hand is one of them


def _sign_test(positive: int, count: int) -> float:
    """All parts have one size: both tails of a binomial distribution."""
    fewer = min(positive, count - positive)
    ways, term = 0, 1
    for place in range(fewer + 1):
        ways += term
        term = term * (count - place) // (place + 1)
    return min(1.0, float(2 * ways / 2**count))
