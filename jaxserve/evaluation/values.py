"""What each document of a task gave: the numbers that a metric is made of, by which two models are compared in pairs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

DOCUMENTS = "sha256"  # of a task's documents, beside the metrics


def values_of(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """By task: {"sha256": of its documents in their order, "metric,filter": a value for each of them}.

    A value is a number, or (log-likelihood, weight) of a text. Metrics of another kind, such as BLEU, are left out.
    """
    return {task: _task(listed) for task, listed in samples.items()}


def _task(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {}
    hashes: dict[str, list[str]] = {}
    for sample in samples:
        hashes.setdefault(sample["filter"], []).append(sample["doc_hash"])
        for metric in sample["metrics"]:
            columns.setdefault(f"{metric},{sample['filter']}", []).append(_value(sample[metric]))
    one = next(iter(hashes.values()), [])  # every filter sees all documents
    kept = {name: column for name, column in columns.items() if len(column) == len(one) and None not in column}
    return {DOCUMENTS: hashlib.sha256("".join(one).encode()).hexdigest(), **kept}


def _value(value: Any) -> float | list[float] | None:
    """None for what is neither a number nor a pair of numbers."""
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        pair = [_number(part) for part in value]
        return None if None in pair else [part for part in pair if part is not None]
    return _number(value)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if not isinstance(value, str) and math.isfinite(number) else None
